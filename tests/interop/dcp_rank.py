# SPDX-License-Identifier: Apache-2.0
"""One rank of a program of PyTorch that saves a state as FSDP2 has it, cut along dimension 0, each rank a file of its rows.

    dcp_rank.py STATE.safetensors FOLDER RANK RANKS
"""
import os
import sys

import safetensors.torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

state, folder, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=ranks)
mesh = init_device_mesh("cpu", (ranks,))
cut = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in safetensors.torch.load_file(state).items()}
dcp.save(cut, storage_writer=HuggingFaceStorageWriter(folder, save_distributed=True))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)   # all is written; at an interpreter's usual end threads of PyTorch's sometimes call terminate()

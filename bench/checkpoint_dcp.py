#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The saves and loads of torch.distributed.checkpoint, for bench/checkpoint.cpp.

    checkpoint_dcp.py FOLDER ELEMENTS     two ranks over Gloo, which own half of so many float32 numbers each

The state is what FSDP2 has: tensors that are cut along dimension 0, parameters and two moments of each. One JSON line: the version, and
in seconds what async_save() held its caller up for ("held", not of the first one), until that save was on disk ("whole"), and what load() took
into memory that was there ("load"), the slower rank each time.
"""
import json
import os
import shutil
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

ROUNDS = 4


def measure(rank, world, folder, elements):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    count = 48   # a block of a GPT has a dozen
    rows = elements // 3 // count // 1024
    state = {f"{kind}.{i}": distribute_tensor(torch.full((rows, 1024), float(i)), mesh, [Shard(0)])
             for kind in ("model", "optim.exp_avg", "optim.exp_avg_sq") for i in range(count)}

    def slower(seconds):
        value = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return value.item()

    times = {"held": [], "whole": [], "load": []}
    for i in range(ROUNDS):
        if rank == 0:
            shutil.rmtree(f"{folder}/dcp-{i - 1}", ignore_errors=True)
        dist.barrier()
        begin = time.monotonic()
        done = dcp.async_save(state, checkpoint_id=f"{folder}/dcp-{i}")
        held = time.monotonic() - begin
        done.result()
        times["whole"].append(slower(time.monotonic() - begin))
        times["held"].append(slower(held))
    for _ in range(3):
        dist.barrier()
        begin = time.monotonic()
        dcp.load(state, checkpoint_id=f"{folder}/dcp-{ROUNDS - 1}")
        times["load"].append(slower(time.monotonic() - begin))
    if rank == 0:
        print(json.dumps({"version": torch.__version__, "bytes": 3 * count * rows * 1024 * 4,
                          "held": times["held"][1:], "whole": times["whole"][1:], "load": times["load"]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(measure, args=(2, sys.argv[1], int(sys.argv[2])), nprocs=2)

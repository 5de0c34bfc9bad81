#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""A checkpoint whose tensors are rows in several shards is read whole by torch.distributed.checkpoint."""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, skip  # noqa: E402

try:
    import safetensors  # noqa: F401  the reader needs it
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs safetensors and, for Python 3.11 on x86-64, PyTorch")

SHAPES = {"model.w": (7, 3), "model.bias": (11,), "model.scale": (), "model.cube": (2, 3, 4), "model.norm": (6, 2),
          "optim.steps": ()}


def main():
    program = find_program("skein_interop_files")
    with tempfile.TemporaryDirectory(prefix="skein-interop-") as folder:
        subprocess.run([program, "shard", folder], check=True)
        checkpoint = str(pathlib.Path(folder) / "step-00000120")
        seen = HuggingFaceStorageReader(checkpoint).read_metadata().state_dict_metadata
        assert {name: tuple(of.size) for name, of in seen.items()} == SHAPES, seen
        state = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(checkpoint), no_dist=True)
        for name, shape in SHAPES.items():
            wanted = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) / 2
            assert torch.equal(state[name], wanted), (name, state[name])
    print(f"read by torch {torch.__version__}")


main()

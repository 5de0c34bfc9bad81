#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# REUSE-IgnoreStart: the licence lines below are those of files that this one writes or looks at.
"""Losses and weights of PyTorch's FSDP2 (fully_shard) for tests/train/fsdp2_reference_test.cpp.

    python3 tests/interop/fsdp2_reference.py > tests/train/fsdp2_reference.hpp

Needs a Python with torch 2.6 or newer; the header in the tree was written by 2.15.0 (2.11.0 gives the same numbers). Two ranks over Gloo train a
small residual network whose initial values and data are formulas, once in float32 and once with
MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32).
"""
import math
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS, BATCH, INPUTS, WIDTH, HIDDEN, CLASSES = 20, 12, 8, 16, 32, 4


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(WIDTH, HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.out(torch.tanh(self.into(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(INPUTS, WIDTH)
        self.a = Cell()
        self.b = Cell()
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.b(self.a(self.embed(x))))


def numbers(count, seed):
    """The same doubles as the C++ test computes, rounded to float32."""
    return torch.tensor([0.4 * math.sin(0.7 * i + seed) for i in range(count)], dtype=torch.float64).float()


def train(rank, world, policy, out):
    net = Net()
    with torch.no_grad():
        for seed, p in enumerate(net.parameters()):
            p.copy_(numbers(p.numel(), seed).view(p.shape))
    how = {"mp_policy": policy} if policy else {}
    for block in (net.a, net.b):
        fully_shard(block, **how)
    fully_shard(net, **how)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    x = numbers(BATCH * INPUTS, 100).view(BATCH, INPUTS)
    y = torch.arange(BATCH) % CLASSES
    mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[mine]).float(), y[mine])
        loss.backward()
        optimizer.step()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    weights = [v for p in net.parameters() for v in p.full_tensor().detach().flatten().tolist()]
    if rank == 0:
        torch.save((losses, weights), out)


def rank_main(rank, world, store, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    train(rank, world, None, out + ".f32")
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    train(rank, world, half, out + ".bf16")
    dist.destroy_process_group()


def listing(name, values):
    text = ", ".join(float(v).hex() for v in values)
    lines, line = [], "   "
    for each in text.split(", "):
        if len(line) + len(each) + 2 > 98:
            lines.append(line)
            line = "   "
        line += f" {each},"
    lines.append(line)
    return f"inline constexpr double {name}[] = {{\n" + "\n".join(lines) + "\n};\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        mp.spawn(rank_main, args=(2, os.path.join(folder, "store"), out), nprocs=2)
        print("// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
              f"// Written by tests/interop/fsdp2_reference.py with torch {torch.__version__.split('+')[0]}.\n\n"
              "// clang-format off\nnamespace fsdp2_reference {\n")
        for kind in ("f32", "bf16"):
            losses, weights = torch.load(f"{out}.{kind}")
            print(listing(f"losses_{kind}", losses))
            print(listing(f"weights_{kind}", weights[::16]))
        print("} // namespace fsdp2_reference\n// clang-format on")


if __name__ == "__main__":
    sys.exit(main())

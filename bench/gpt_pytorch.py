#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model, batch and optimizer of bench/torch_gpt.cpp in Python PyTorch: the baseline of its figures.

gpt_pytorch.py                                                    one process
python -m torch.distributed.run --nproc-per-node 2 gpt_pytorch.py DDP over Gloo; --mode fsdp: fully_shard (FSDP2)
"""
import argparse
import json
import math
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

arguments = argparse.ArgumentParser()
arguments.add_argument("--mode", default="ddp", choices=["ddp", "fsdp"])
arguments.add_argument("--batch", type=int, default=8, help="samples per rank")
arguments.add_argument("--layers", type=int, default=4)
arguments.add_argument("--dim", type=int, default=256)
arguments.add_argument("--steps", type=int, default=60)
arguments.add_argument("--precision", default="f32", choices=["f32", "bf16"])
asked = arguments.parse_args()

CONTEXT, BATCH, LAYERS, HEADS, DIM, VOCABULARY = 128, asked.batch, asked.layers, 8, asked.dim, 256
STEPS, WARM_UP = asked.steps, asked.steps // 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.mix = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(out.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                writes = "mix.weight" in name or "down.weight" in name
                nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * LAYERS) if writes else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        x = self.bytes(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.bytes.weight)


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = trained = GPT()
    if asked.mode == "fsdp" and world > 1:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        half = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
        for each in [*model.blocks, model]:
            fully_shard(each, **(half if asked.precision == "bf16" else {}))
    elif world > 1:
        trained = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
                                  lr=3e-4, fused=True)
    places = torch.arange(CONTEXT + 1)
    seconds, cpu, loss = [], [], None
    for step in range(STEPS):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        ids = torch.arange(BATCH).unsqueeze(1) + (step * world + rank) * BATCH
        tokens = (ids * 2654435761 + places * places * 97 >> 7) & 255
        optimizer.zero_grad()
        loss = F.cross_entropy(trained(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
    rss = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    if world > 1:
        dist.all_reduce(rss, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"tokens_per_s": world * BATCH * CONTEXT / sorted(seconds[WARM_UP:])[(STEPS - WARM_UP) // 4],
                          "cpu_seconds": sorted(cpu[WARM_UP:])[(STEPS - WARM_UP) // 4],
                          "peak_rss_bytes": rss.item(), "loss": loss.item(),
                          "cuda": torch.version.cuda or "none"}), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

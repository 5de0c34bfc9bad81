#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model, batch and optimizer of bench/torch_gpt.cpp in Python PyTorch: the baseline of its figures.

gpt_pytorch.py                                                    one process
python -m torch.distributed.run --nproc-per-node 2 gpt_pytorch.py DDP over Gloo
"""
import json
import math
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

CONTEXT, BATCH, LAYERS, HEADS, DIM, VOCABULARY = 128, 8, 4, 8, 256, 256
STEPS, WARM_UP = 60, 10


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
    model = GPT()
    trained = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
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
        loss = F.cross_entropy(trained(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
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

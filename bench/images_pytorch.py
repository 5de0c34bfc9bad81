#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training step of bench/image_models.cpp by torchvision: images_pytorch.py MODEL PIXELS BATCH STEPS."""
import sys
import time

import torch
import torchvision


def typical(values):
    """The median of the faster half, without the first."""
    values = sorted(values[1:])
    return values[len(values) // 4]


def main() -> None:
    name, (image, batch, steps) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = getattr(torchvision.models, name)()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
    images, labels = torch.randn(batch, 3, image, image), torch.arange(batch)
    seconds, cpu, losses = [], [], []
    for _ in range(steps):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
    print(f"rate {batch / typical(seconds)} cpu {typical(cpu)} loss {losses[0]}")


if __name__ == "__main__":
    main()

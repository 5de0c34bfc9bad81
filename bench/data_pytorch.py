#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch DataLoader's side of bench/data.cpp: two workers, batches of 64.

Prints "version V", "first S" (seconds from the start of this process to its first batch), "rate R" (images per second
between batches 2 and 8, when each worker has made one) and "cpu C" (milliseconds of processor time of all its processes
for each of those images).
"""
import multiprocessing
import os
import time

BEGIN = time.perf_counter()    # before the imports

import torch    # noqa: E402
from torch.utils.data import DataLoader, Dataset    # noqa: E402

from blurred_images import BATCH, image    # noqa: E402

WARM_UP, BATCHES = 2, 6


class Images(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, number):
        return image(number)


def cpu_seconds():
    """Of this process and its workers."""
    ticks = 0
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main():
    torch.set_num_threads(1)
    batches = iter(DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=2))
    next(batches)
    first = time.perf_counter() - BEGIN
    for _ in range(WARM_UP - 1):
        next(batches)
    begin, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(BATCHES):
        next(batches)
    rate = BATCHES * BATCH / (time.perf_counter() - begin)
    cpu = (cpu_seconds() - cpu) * 1000 / (BATCHES * BATCH)
    print(f"version torch-{torch.__version__}\nfirst {first}\nrate {rate}\ncpu {cpu}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ray Data's side of bench/data.cpp: two cpus, batches of 64.

Prints "version V", "first S" (seconds from the start of this process to its first batch) and "rate R" (images per second
over the batches after the eighth).
"""
import shutil
import tempfile
import time

BEGIN = time.perf_counter()    # before the imports

import numpy    # noqa: E402
import ray    # noqa: E402

from blurred_images import BATCH, image    # noqa: E402

WARM_UP, BATCHES = 8, 12


def make(rows):
    import torch
    torch.set_num_threads(1)
    made = [image(int(number)) for number in rows["id"]]
    return {"pixels": numpy.stack([pixels.numpy() for pixels, _ in made]), "label": numpy.array([label for _, label in made])}


def main():
    folder = tempfile.mkdtemp(prefix="ray")    # short: Ray's sockets lie in it
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
                 _temp_dir=folder)
        ray.data.DataContext.get_current().enable_progress_bars = False
        # Blocks of a batch each, so that none waits for more than it needs.
        data = ray.data.range(40 * BATCH, override_num_blocks=40).map_batches(make, batch_size=BATCH)
        batches = iter(data.iter_torch_batches(batch_size=BATCH))
        next(batches)
        first = time.perf_counter() - BEGIN
        for _ in range(WARM_UP - 1):
            next(batches)
        begin = time.perf_counter()
        for _ in range(BATCHES):
            next(batches)
        rate = BATCHES * BATCH / (time.perf_counter() - begin)
        print(f"version ray-{ray.__version__}\nfirst {first}\nrate {rate}", flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

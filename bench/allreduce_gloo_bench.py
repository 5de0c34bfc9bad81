#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of two ranks against Gloo in Python PyTorch, in turns on the same machine.

Prints one JSON line per size and model (shm, ring): our rate, Gloo's rate, their ratio. Gloo runs as two
processes over loopback (torch.distributed), float32 sum, buffers warm. Ours is the program
$SKEIN_BUILD_DIR/bench/allreduce --times. Without torch or that program it says so and ends well.
"""
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = [4096, 65536, 1 << 20, 8 << 20, 64 << 20]
ROUNDS = 5


def skip(reason: str) -> None:
    print(f"allreduce_gloo_bench: skipped, {reason}", file=sys.stderr)
    sys.exit(0)


def rank(index: int, port: int, queue) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=index, world_size=2)
    out = []
    for size in SIZES:
        data = torch.full((size // 4,), 1e-20)
        times = max(1, min(500, (96 << 20) // size))
        samples = []
        for turn in range(ROUNDS + 1):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(times):
                dist.all_reduce(data)
            if turn > 0:
                samples.append((time.perf_counter() - begin) / times)
        out.append(statistics.median(samples))
    if index == 0:
        queue.put(out)
    dist.destroy_process_group()


def gloo() -> list:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=rank, args=(r, port, queue)) for r in (0, 1)]
    for process in ranks:
        process.start()
    times = queue.get(timeout=300)
    for process in ranks:
        process.join()
    return times


def ours(program: str, model: str) -> dict:
    lines = subprocess.run([program, "--times", model], check=True, capture_output=True, text=True, timeout=300).stdout
    return {int(size): float(seconds) for size, seconds in (line.split() for line in lines.splitlines())}


def main() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        skip("this Python has no torch (set SKEIN_PYTHON to one that has)")
    program = os.path.join(os.environ.get("SKEIN_BUILD_DIR", "build"), "bench", "allreduce")
    if not os.path.exists(program):
        skip(f"{program} is not built (run scripts/bench allreduce first)")
    shm, theirs, ring = ours(program, "shm"), gloo(), ours(program, "ring")
    for model, mine in (("shm", shm), ("ring", ring)):
        for size, seconds in zip(SIZES, theirs):
            value, base = size / mine[size] * 1e-9, size / seconds * 1e-9
            name = f"{size >> 20}MiB" if size >= 1 << 20 else f"{size >> 10}KiB"
            print(json.dumps({"name": f"allreduce.{model}.{name}.gloo", "value": round(value, 4), "unit": "GB/s",
                              "baseline": "Gloo through Python PyTorch, two processes", "baseline_value": round(base, 4),
                              "ratio": round(value / base, 3), "bar": 1.0, "ok": value >= base}), flush=True)


if __name__ == "__main__":
    main()

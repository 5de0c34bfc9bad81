# SPDX-License-Identifier: Apache-2.0
"""Ray's side of bench/ray_micro.cpp: the shapes of Ray's own microbenchmark, one round at a time.

    ray_micro_ray.py --start       a whole program: prints a line when its first task has a result
    ray_micro_ray.py --serve FD    reads "SHAPE SECONDS" lines from the socket FD, answers each with calls per second
"""
import shutil
import socket
import sys
import tempfile
import time

import ray

BATCH = 1000


@ray.remote
def small_value():
    return b"ok"


@ray.remote(num_cpus=0)
class Actor:
    def small_value(self):
        return b"ok"


def start(folder):
    ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False, _temp_dir=folder)


def rate(call, calls, seconds):
    """Calls per second of `call`, which makes so many of them, for so long."""
    begin = time.perf_counter()
    done = 0
    while time.perf_counter() - begin < seconds:
        call()
        done += calls
    return done / (time.perf_counter() - begin)


def serve(fd):
    actor = Actor.remote()
    shapes = {"single_client_tasks_sync": (lambda: ray.get(small_value.remote()), 1),
              "single_client_tasks_async": (lambda: ray.get([small_value.remote() for _ in range(BATCH)]), BATCH),
              "1_1_actor_calls_sync": (lambda: ray.get(actor.small_value.remote()), 1),
              "1_1_actor_calls_async": (lambda: ray.get([actor.small_value.remote() for _ in range(BATCH)]), BATCH)}
    with socket.socket(fileno=fd) as way, way.makefile("rw", encoding="ascii") as lines:
        lines.write(ray.__version__ + "\n")
        lines.flush()
        for line in lines:    # until the benchmark has gone
            shape, seconds = line.split()
            call, calls = shapes[shape]
            lines.write(f"{rate(call, calls, float(seconds))}\n")
            lines.flush()


def main():
    folder = tempfile.mkdtemp(prefix="ray")    # short: Ray's sockets lie in it
    try:
        start(folder)
        if sys.argv[1] == "--start":
            ray.get(small_value.remote())
            print("first", flush=True)
        else:
            serve(int(sys.argv[2]))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

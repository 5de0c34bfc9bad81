# SPDX-License-Identifier: Apache-2.0
"""What the Ray sides of benchmarks share: a driver that measures one shape after the other, on request."""
import shutil
import socket
import tempfile
import time

import ray


def within_ray(work, **how):
    """Runs work() in a Ray of its own, which ends with it."""
    folder = tempfile.mkdtemp(prefix="ray")    # short: Ray's sockets lie in it
    try:
        ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False, _temp_dir=folder, **how)
        work()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def rate(call, calls, seconds):
    """Calls per second of `call`, which makes so many of them, for so long, and once at least."""
    begin = time.perf_counter()
    done = 0
    while done == 0 or time.perf_counter() - begin < seconds:
        call()
        done += calls
    return done / (time.perf_counter() - begin)


def serve(fd, shapes):
    """Reads "SHAPE SECONDS" lines from the socket fd, answers each with calls per second. shapes: name to (call, calls)."""
    with socket.socket(fileno=fd) as way, way.makefile("rw", encoding="ascii") as lines:
        lines.write(ray.__version__ + "\n")
        lines.flush()
        for line in lines:    # until the benchmark has gone
            shape, seconds = line.split()
            call, calls = shapes[shape]
            lines.write(f"{rate(call, calls, float(seconds))}\n")
            lines.flush()

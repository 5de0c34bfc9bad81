#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Streams between real processes, on one host and on the nodes of a cluster; their workers are killed.

    streams_test.py [NAME]

By events: output lines and ends of processes. Nothing may be left behind.
"""
# label: runtime
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import SECONDS, Cluster  # noqa: E402
from program import Run, find_program, run_cases  # noqa: E402

LINES = """10000 items
a task's: 499500
an actor's: 506500
killed: what had come, worker_lost
again: 50 items of attempt 2
ended by its reader: gone
"""
ENDS = "ends: 80, wrong: 0, some whole: true"


def one_host():
    """Tasks, actors and workers that read; a worker that is killed behind taken items, one before any was; early ends."""
    with tempfile.TemporaryDirectory() as folder, Run([find_program("skein_streams"), "--workers", 2, folder]) as run:
        run.check(run.wait() == 0 and run.stdout == LINES, "other lines")
        run.check_nothing_left()


def cluster():
    """The same on two nodes: items go from node to node, and by way of the driver."""
    with Cluster([("n1", ["--resources", "cpu=2"]), ("n2", ["--resources", "cpu=2"])]) as c:
        run = c.run(find_program("skein_streams"), "--address", c.address, c.folder)
        run.check(run.wait(SECONDS) == 0 and run.stdout == LINES, "other lines")


def kills():
    """In each of 20 rounds a worker is killed while streams are read: every stream ends, whole or lost, in order."""
    with Run([find_program("skein_streams"), "--workers", 3, "kills"]) as run:
        for number in range(20):
            run.wait_until(lambda: f"round {number}\n" in run.stdout or run.process.poll() is not None, f"round {number}")
            workers = run.children()
            if workers:
                try:
                    os.kill(workers[number % len(workers)], signal.SIGKILL)
                except ProcessLookupError:
                    pass    # it has ended in this moment
        run.check(run.wait() == 0, "it has failed")
        run.check(re.search(rf"^{ENDS}$", run.stdout, re.M) is not None, "an end that is none of the two")
        run.check_nothing_left()


CASES = [("one host", one_host), ("cluster", cluster), ("kills", kills)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/095_two_nodes as its first lines say: a script that makes a cluster of two nodes and runs programs on it.

    two_nodes_test.py [NAME]
"""
# label: runtime
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

EXAMPLES = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "examples"
SECONDS = 60.0


def on_two_nodes(check, *program):
    """Runs a program by the script; neither a process nor a file is left."""
    with tempfile.TemporaryDirectory(prefix="skein-two-nodes-") as folder:
        script = EXAMPLES / "095_two_nodes" / "start.sh"
        with Run([script, find_program("skein"), *program], cwd=folder, TMPDIR=folder) as run:
            check(run)
            run.check_nothing_left()
        left = sorted(os.listdir(folder))
        assert not left, f"files are left: {left}"


def both_run_tasks():
    def check(run):
        run.check(run.wait(SECONDS) == 0, "it failed")
        run.check(re.search(r"^garden ran \d+ tasks\nkitchen ran \d+ tasks\n", run.stdout), "not both nodes have run tasks")
        run.check(re.search(r"^  garden +\S+ +\d+ +ready +0 ", run.stdout, re.M), "no status of the node")
    on_two_nodes(check, find_program("095_two_nodes"), "2")


def other_examples():
    """Tasks that call an actor, and tasks over files, print what they print on one host."""
    for name in ("080_parameter_server", "090_map_reduce"):
        def check(run, name=name):
            run.check(run.wait(SECONDS) == 0, "it failed")
            run.check(run.stdout.startswith((EXAMPLES / f"{name}.expected").read_text()), "another output")
        on_two_nodes(check, find_program(name))


def failures():
    """The script ends with the code of the program, or of the signal that ended it, and ends the cluster before."""
    def failed(run):
        run.check(run.wait(SECONDS) == 1 and "no-such-file" in run.stderr, "it did not fail")
    on_two_nodes(failed, find_program("090_map_reduce"), "/dev/null/no-such-file")

    def stopped(run):
        run.wait_until(lambda: "driver joined" in run.stderr, "a driver", SECONDS)
        os.killpg(run.process.pid, signal.SIGINT)
        run.check(run.wait(SECONDS) == 130, "it was not stopped")
    on_two_nodes(stopped, find_program("095_two_nodes"), "3")    # waits for a third node for ever


CASES = [("both nodes run tasks", both_run_tasks), ("other examples", other_examples), ("failures", failures)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/420_handover as its first lines say: an elastic training goes on while its nodes are drained, come back and are lost.

    handover_test.py [NAME]
"""
# label: train
import os
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(SOURCE / "cmake"))
from run_example import matches  # noqa: E402

SECONDS = 240.0


def by_script(check):
    """Runs the script; neither a process nor a file is left."""
    with tempfile.TemporaryDirectory(prefix="skein-handover-") as folder:
        with Run([SOURCE / "examples" / "420_handover" / "run.sh", find_program("skein"), find_program("300_elastic_mnist")], cwd=folder, TMPDIR=folder,
                 HOME=folder) as run:
            check(run)
            run.check_nothing_left()
        left = sorted(os.listdir(folder))
        assert not left, f"files are left: {left}"


def as_it_is():
    def check(run):
        run.check(run.wait(SECONDS) == 0, "it failed")
        expected = (SOURCE / "examples" / "420_handover" / "420_handover.expected").read_text().splitlines()
        at = matches(expected, run.stdout.splitlines())
        run.check(at < 0, f"line {at + 1} of 420_handover.expected was not met")
    by_script(check)


def stopped():
    def check(run):
        run.wait_until(lambda: "4 workers train" in run.stdout, "workers", SECONDS)
        os.killpg(run.process.pid, signal.SIGINT)
        run.check(run.wait(SECONDS) == 130, "it was not stopped")
    by_script(check)


CASES = [("as it is", as_it_is), ("stopped", stopped)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

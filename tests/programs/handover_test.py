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

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from example_script import by_script, check_expected  # noqa: E402
from program import find_program, run_cases  # noqa: E402

EXAMPLE = "420_handover"
SECONDS = 240.0


def as_it_is():
    """It prints what its .expected file says."""
    def check(run):
        run.check(run.wait(SECONDS) == 0, "it failed")
        check_expected(run, EXAMPLE)
    by_script(EXAMPLE, check, find_program("300_elastic_mnist"))


def stopped():
    """Ctrl-C while it trains ends all of it."""
    def check(run):
        run.wait_until(lambda: "4 workers train" in run.stdout, "workers", SECONDS)
        os.killpg(run.process.pid, signal.SIGINT)
        run.check(run.wait(SECONDS) == 130, "it was not stopped")
    by_script(EXAMPLE, check, find_program("300_elastic_mnist"))


CASES = [("as it is", as_it_is), ("stopped", stopped)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/410_job as its first lines say: a script that starts a cluster and sends a job to it.

    job_example_test.py [NAME]
"""
# label: runtime
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from example_script import by_script, check_expected  # noqa: E402
from program import run_cases  # noqa: E402

EXAMPLE = "410_job"
SECONDS = 60.0


def as_it_is():
    """It prints what its .expected file says."""
    def check(run):
        run.check(run.wait(SECONDS) == 0, "it failed")
        check_expected(run, EXAMPLE)
    by_script(EXAMPLE, check)


def other_programs():
    """A program that is named goes along; one that fails makes the script fail."""
    def failed(run):
        run.check(run.wait(SECONDS) == 1, "it did not fail")
        run.check("sum FAILED on" in run.stderr and "exit code 1" in run.stdout, "no word of how it ended")
    by_script(EXAMPLE, failed, "/bin/false")

    def stopped(run):
        run.wait_until(lambda: "sum RUNNING" in run.stderr, "a job", SECONDS)
        os.killpg(run.process.pid, signal.SIGINT)
        run.check(run.wait(SECONDS) == 130, "it was not stopped")
    by_script(EXAMPLE, stopped, "/bin/sleep", "1000")


CASES = [("as it is", as_it_is), ("other programs", other_programs)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

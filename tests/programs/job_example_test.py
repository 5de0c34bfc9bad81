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
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(SOURCE / "cmake"))
from run_example import matches  # noqa: E402

EXAMPLE = SOURCE / "examples" / "410_job"
SECONDS = 60.0


def by_script(check, *program):
    """Runs the script; neither a process nor a file is left."""
    with tempfile.TemporaryDirectory(prefix="skein-job-example-") as folder:
        with Run([EXAMPLE / "run.sh", find_program("skein"), *program], cwd=folder, TMPDIR=folder, HOME=folder) as run:
            check(run)
            run.check_nothing_left()
        left = sorted(os.listdir(folder))
        assert not left, f"files are left: {left}"


def as_it_is():
    """It prints what its .expected file says."""
    def check(run):
        run.check(run.wait(SECONDS) == 0, "it failed")
        expected = (EXAMPLE / "410_job.expected").read_text().splitlines()
        at = matches(expected, run.stdout.splitlines())
        run.check(at < 0, f"line {at + 1} of 410_job.expected was not met")
    by_script(check)


def other_programs():
    """A program that is named goes along; one that fails makes the script fail."""
    def failed(run):
        run.check(run.wait(SECONDS) == 1, "it did not fail")
        run.check("sum FAILED on" in run.stderr and "exit code 1" in run.stdout, "no word of how it ended")
    by_script(failed, "/bin/false")

    def stopped(run):
        run.wait_until(lambda: "sum RUNNING" in run.stderr, "a job", SECONDS)
        os.killpg(run.process.pid, signal.SIGINT)
        run.check(run.wait(SECONDS) == 130, "it was not stopped")
    by_script(stopped, "/bin/sleep", "1000")


CASES = [("as it is", as_it_is), ("other programs", other_programs)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

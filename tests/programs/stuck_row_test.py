#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training of which one row never ends: the row is named, and the first signal ends the run.

    stuck_row_test.py [NAME]
"""
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

PROGRAM = find_program("skein_stuck_row")
SECONDS = 100.0


def training(check, workers, helpers, *more):
    """Ends the processes that it leaves: a row that never ends cannot be joined."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as runs, Run([PROGRAM, workers, runs, helpers, *more], cwd=runs) as run:
        check(run, pathlib.Path(runs, "stuck"))


def said(run):
    return run.stdout + run.stderr


def stop(workers, helpers, sig):
    def check(run, _):
        run.wait_until(lambda: "so far" in said(run), "name of the row", SECONDS)    # it is in the way
        run.process.send_signal(sig)
        run.check(run.wait(SECONDS) == 128 + sig, "another exit code")
        run.check(re.search(r"sample 30, map\(stick_at_30\): has taken \d+ s so far", said(run)), "the row has another name")
        run.check(re.search(r"stopped by SIG\w+: .*sample 30, map\(stick_at_30\)", said(run)) or "a stop was asked for" in said(run), "no word on the stop")
    training(check, workers, helpers)


def stop_all(workers, sig):
    """As a terminal does with Ctrl-C, and a batch system: the signal reaches the helpers, too."""
    def check(run, folder):
        rows = folder / "metrics.csv"
        run.wait_until(lambda: rows.exists() and rows.stat().st_size >= 500, "rows", SECONDS)
        os.killpg(run.process.pid, sig)
        run.check(run.wait(SECONDS) == 128 + sig, "another exit code")
        run.check(os.listdir(folder / "checkpoints"), "no checkpoint")
    training(check, workers, 1, 100000)


CASES = [
    ("one process", lambda: stop(1, 0, signal.SIGTERM)),
    ("ranks", lambda: stop(2, 0, signal.SIGINT)),
    ("a rank with a helper", lambda: stop(1, 1, signal.SIGINT)),
    ("a stop that reaches the helper of one process", lambda: stop_all(1, signal.SIGINT)),
    ("a stop that reaches the helpers of ranks", lambda: stop_all(2, signal.SIGTERM)),
]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

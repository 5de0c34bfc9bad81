#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors as arguments, results and objects of tasks, with a store and by messages."""
# label: train
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

NUMBERS = 1 << 20
SUM = sum(i % 1000 for i in range(NUMBERS))


def lines(*arguments, **variables):
    with tempfile.TemporaryDirectory() as folder, Run([find_program("skein_tensors"), *arguments, "--workers", 2], cwd=folder, **variables) as run:
        run.check(run.wait(120.0) == 0, f"exit code {run.process.returncode}")
        run.check_nothing_left()
        return run.stdout.splitlines()


def travel(**variables):
    said = lines(**variables)
    # Sums of floats, in whatever order LibTorch adds.
    sums = [float(line.split()[-1]) for line in said[:5]]
    assert len(said) == 7 and all(abs(one / SUM - 1) < 1e-5 for one in sums[:4]) and abs(sums[4] / (6 * SUM) - 1) < 1e-5, said
    assert said[5:] == ["the same true", "unchanged true"], said


def refused():
    said = lines("refused")
    assert len(said) == 2 and "requires a gradient" in said[0] and "not contiguous" in said[1], said


if __name__ == "__main__":
    run_cases([("in the store", lambda: travel(SKEIN_STORE="64MiB")), ("by messages", lambda: travel(SKEIN_STORE="0")), ("refused", refused)],
              sys.argv[1] if len(sys.argv) > 1 else None)

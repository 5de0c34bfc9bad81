#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects on real processes: what is there before the first one, what is left of many, kills, a full store, none.

    objects_test.py [NAME]
"""
# label: runtime
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

SECONDS = 120.0


def expect(lines, *arguments, said="", **variables):
    with tempfile.TemporaryDirectory() as folder, Run([find_program("skein_objects"), *arguments], cwd=folder, **variables) as run:
        run.check(run.wait(SECONDS) == 0, f"exit code {run.process.returncode}")
        run.check(run.stdout.splitlines() == lines, "other lines")
        run.check(said in run.stderr, f"nothing says: {said}")
        run.check_nothing_left()


def nothing_before_the_first_object():
    """No thread and no page; then both."""
    expect(["threads 0 MiB 0", "threads 1 MiB 1"], "idle", "--workers", 2, SKEIN_STORE="64MiB")


def three_thousand_results_dropped():
    """Their memory is used again, and given back when nothing changes: [V4]."""
    expect(["at most few then 0"], "drop", 3000, "--workers", 2)


def workers_killed():
    """Tasks run again on the objects that live on: [V5]."""
    expect(["right"], "kills", 5, "--workers", 3)


def a_full_store():
    """What finds no room travels in messages: [V6]."""
    expect(["4 of 6 in the store", "right"], "full", 6, "--workers", 2, SKEIN_STORE="33MiB",
           said="waits for room in the store")


def no_store():
    """The same by messages: [V7]."""
    expect(["0 of 3 in the store", "right"], "full", 3, "--workers", 2, SKEIN_STORE="0")


def results_of_long_calls():
    """Each is there before the plain call behind it has ended."""
    expect([f"{i} of {1 << 18}" for i in range(4)], "long_calls", "--workers", 1)


def calls_of_a_plain_function():
    """One with a large argument leaves while that runs."""
    expect(["it ran meanwhile"], "from_plain", "--workers", 2)


def a_wrong_size():
    with Run([find_program("skein_objects"), "idle"], SKEIN_STORE="much") as run:
        run.check(run.wait(SECONDS) == 2, f"exit code {run.process.returncode}")
        run.check("much is no size of a store" in run.stderr, "another reason")


CASES = [("nothing before the first object", nothing_before_the_first_object),
         ("three thousand results dropped", three_thousand_results_dropped), ("workers killed", workers_killed),
         ("a full store", a_full_store), ("no store", no_store),
         ("results of long calls", results_of_long_calls), ("calls of a plain function", calls_of_a_plain_function),
         ("a wrong size", a_wrong_size)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users of other object stores and streams ran into, tried here: docs/testing.md lists the reports.

    object_reports_test.py [NAME]
"""
# label: runtime
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

SECONDS = 120.0


def expect(line, *arguments, **variables):
    def case():
        with Run([find_program("skein_object_reports"), *arguments, "--workers", 3], **variables) as run:
            run.check(run.wait(SECONDS) == 0, f"exit code {run.process.returncode}")
            run.check(run.stdout == line + "\n", f"another line than: {line}")
            run.check_nothing_left()
    return case


CASES = [("a loop", expect("right few", "loop", 20)),
         ("more than the store", expect("right", "more", 6, SKEIN_STORE="33MiB")),
         ("held beyond the store", expect("right", "held", 5, SKEIN_STORE="33MiB")),
         ("many put", expect("right", "many", 40)),
         ("failures", expect("20 of 20 few", "failures", 20)),
         ("dies", expect("right", "dies", 3)),
         ("records", expect("right", "records", 100000)),
         ("streams", expect("right", "streams", 40)),
         ("slow reader", expect("few", "slow", 5)),
         ("large argument", expect("right 10", "argument", 10)),
         ("large argument without a store", expect("right 10", "argument", 10, SKEIN_STORE="0"))]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

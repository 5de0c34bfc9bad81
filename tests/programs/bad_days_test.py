#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad days of a cluster of real processes: what its operators meet in the first week.

    bad_days_test.py [NAME]

By events: output lines, ends of processes, and what `skein status` and `skein job status` say.
"""
# label: runtime
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import run_cases  # noqa: E402

# ---- nodes that are silent, heads that come back -------------------------------------------------

# ---- nodes that cannot start anything, jobs that wait for each other -----------------------------

# ---- strangers, keys, files of the head ----------------------------------------------------------

# ---- what ranks compare, what the page tells -----------------------------------------------------

CASES = [
    # nodes that are silent, heads that come back

    # nodes that cannot start anything, jobs that wait for each other

    # strangers, keys, files of the head

    # what ranks compare, what the page tells

]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

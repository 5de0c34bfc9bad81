#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training of which one row never ends: the row is named, and the first signal ends the run."""
import os
import re
import signal
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.environ["SKEIN_BUILD_DIR"], "tests", "programs", "skein_stuck_row")


class StuckRow(unittest.TestCase):
    def stop(self, workers: int, helpers: int, sig: int):
        with tempfile.TemporaryDirectory() as runs, subprocess.Popen(
                [PROGRAM, str(workers), runs, str(helpers)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as run:
            said = ""
            try:
                for line in run.stdout:  # the row has been named: it is in the way
                    said += line
                    if "so far" in line:
                        break
                run.send_signal(sig)
                rest, _ = run.communicate(timeout=100)
            finally:
                try:
                    os.killpg(run.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            said += rest
            self.assertEqual(run.returncode, 128 + sig, said)
            self.assertRegex(said, r"sample 30, map\(stick_at_30\): has taken \d+ s so far")
            self.assertTrue(re.search(r"stopped by SIG\w+: .*sample 30, map\(stick_at_30\)", said) or "a stop was asked for" in said, said)

    def test_the_first_signal_ends_one_process(self):
        self.stop(1, 0, signal.SIGTERM)

    def test_the_first_signal_ends_ranks(self):
        self.stop(2, 0, signal.SIGINT)

    def test_the_first_signal_ends_a_rank_with_a_helper(self):
        self.stop(1, 1, signal.SIGINT)

    def test_a_stop_that_reaches_the_helpers_too_leaves_a_checkpoint(self):
        for workers, sig in ((1, signal.SIGINT), (2, signal.SIGTERM)):
            with self.subTest(workers=workers), tempfile.TemporaryDirectory() as runs, subprocess.Popen(
                    [PROGRAM, str(workers), runs, "1", "100000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as run:
                rows = os.path.join(runs, "stuck", "metrics.csv")
                try:
                    while not os.path.exists(rows) or os.path.getsize(rows) < 500:  # it trains
                        self.assertIsNone(run.poll())
                        os.sched_yield()
                    os.killpg(run.pid, sig)  # as a terminal does with Ctrl-C, and a batch system
                    said, _ = run.communicate(timeout=100)
                finally:
                    try:
                        os.killpg(run.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                self.assertEqual(run.returncode, 128 + sig, said)
                self.assertTrue(os.listdir(os.path.join(runs, "stuck", "checkpoints")), said)


if __name__ == "__main__":
    unittest.main()

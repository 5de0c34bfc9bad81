#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train;metrics
"""A run that is killed amid an epoch and resumed counts every digit once, and decides what an undisturbed run decides.

SKEIN_METRICS_KILLS says how many runs are killed (default 6): in the same world the files have the same bytes, in another
one counts and decisions are the same.
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from program import environment, find_program  # noqa: E402

PROGRAM = find_program("130_metrics_manager")
KILLS = int(os.environ.get("SKEIN_METRICS_KILLS", "6"))
OPTIONS = ["--samples", "700", "--val", "90", "--test", "50", "--epochs", "3", "--batch", "32", "--eval-every", "9",
           "--checkpoint-every", "4", "--plain", "--rules"]
FILES = ("metrics.csv", "events.jsonl")  # the same bytes; metrics.jsonl has times besides


def command(folder, workers, *more):
    return [PROGRAM, "--workers", str(workers), "--runs", folder, *OPTIONS, *more]


def finish(folder, workers, *more):
    done = subprocess.run(command(folder, workers, *more), env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return {name: pathlib.Path(folder, "digits", name).read_bytes() for name in (*FILES, "metrics.jsonl")}


def kill_after(folder, workers, rows, *more):
    """Kills the whole job once its folder has so many rows; None when it was over before."""
    job = subprocess.Popen(command(folder, workers, *more), env=environment(), start_new_session=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    path = pathlib.Path(folder, "digits", "metrics.csv")
    try:
        while job.poll() is None:
            if path.exists() and path.read_bytes().count(b"\n") > rows:
                break
            time.sleep(0.002)
        ended = job.poll() is not None
    finally:
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.wait()
    return None if ended else path.read_bytes().count(b"\n") - 1


def counts(files):
    """Of each row that has confusion matrices: how many digits of each label they hold, whatever was predicted."""
    rows = map(json.loads, files["metrics.jsonl"].decode().splitlines())
    return [(row["step"], name, [sum(line) for line in matrix])
            for row in rows for name, matrix in row.items() if name.endswith("confusion_matrix")]


def decisions(files):
    return [(e["step"], e["rule"], e["what"], e["to"]) for e in map(json.loads, files["events.jsonl"].decode().splitlines())]


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = {}
        for workers in (1, 2, 3):
            with tempfile.TemporaryDirectory(prefix="skein-metrics-") as folder:
                cls.whole[workers] = finish(folder, workers)
        epochs = [sum(labels) for _, name, labels in counts(cls.whole[1]) if name.startswith("train_epoch_")]
        assert epochs == [700, 700, 700], epochs

    def test_killed_and_resumed(self):
        draw = random.Random(7)
        killed = 0
        for number in range(KILLS):
            before = number % 3 + 1
            after = before if number % 2 == 0 else before % 3 + 1
            rows = draw.randint(1, 40)
            with self.subTest(before=before, after=after, rows=rows), tempfile.TemporaryDirectory(prefix="skein-metrics-") as folder:
                at = kill_after(folder, before, rows)
                killed += at is not None
                files = finish(folder, after, "--resume")
                if before == after:
                    for name in FILES:
                        self.assertEqual(files[name], self.whole[after][name], f"{name} after a kill behind row {at}")
                self.assertEqual(counts(files), counts(self.whole[after]))
                self.assertEqual(decisions(files), decisions(self.whole[after]))
        self.assertGreater(killed, 0)
        print(f"{killed} of {KILLS} runs were killed")


if __name__ == "__main__":
    unittest.main(verbosity=2)

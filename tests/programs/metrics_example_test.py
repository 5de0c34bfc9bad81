#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train;metrics
"""What 130_metrics_manager says of training, validation and test data is what torchmetrics says of the same scores."""
import glob
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from program import environment, find_program, skip  # noqa: E402

try:
    import torch
    import torchmetrics.functional.classification as tmc
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs torchmetrics and, for Python 3.11 on x86-64, PyTorch")

PROGRAM = find_program("130_metrics_manager")
SETS = {"train": 410, "val": 101, "test": 53}   # no multiples of anything


def run(folder, workers, *more):
    subprocess.run([PROGRAM, "--workers", str(workers), "--samples", "410", "--val", "101", "--test", "53", "--epochs", "1",
                    "--batch", "32", "--eval-every", "0", "--lr", "0.02", "--plain", "--runs", folder, "--predictions", f"{folder}/said",
                    *more],
                   env=environment(), check=True, capture_output=True, text=True, timeout=240)
    last = json.loads(pathlib.Path(folder, "digits", "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    said = {name: {} for name in SETS}
    for path in glob.glob(f"{folder}/said.*"):
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            stage, number, label, *scores = line.split()
            assert number not in said[stage], f"digit {number} was shown twice in {stage}"
            said[stage][number] = (int(label), [float(s) for s in scores])
    return last, said


class Example(unittest.TestCase):
    def check(self, workers, *more):
        with tempfile.TemporaryDirectory(prefix="skein-metrics-") as folder:
            last, said = run(folder, workers, *more)
        for stage, count in SETS.items():
            self.assertEqual(len(said[stage]), count)
            target = torch.tensor([label for label, _ in said[stage].values()])
            scores = torch.tensor([s for _, s in said[stage].values()])
            name = "train_epoch" if stage == "train" else stage
            wanted = {"accuracy": tmc.multiclass_accuracy(scores, target, 10, average="micro"),
                      "f1": tmc.multiclass_f1_score(scores, target, 10, average="macro")}
            for metric, value in wanted.items():
                self.assertAlmostEqual(last[f"{name}_{metric}"], value.item(), delta=1e-6, msg=f"{name} {metric}, {workers} workers")
            matrix = tmc.multiclass_confusion_matrix(scores, target, 10).tolist()
            self.assertEqual(last[f"{name}_confusion_matrix"], matrix, f"{name}, {workers} workers")
            loss = torch.nn.functional.cross_entropy(scores, target).item()
            if stage != "train":
                self.assertAlmostEqual(last[f"{name}_loss"], loss, delta=1e-5 * max(1.0, math.fabs(loss)))

    def test_1_worker(self):
        self.check(1)

    def test_2_workers(self):
        self.check(2)

    def test_3_workers_fsdp(self):
        self.check(3, "--strategy", "fsdp")


if __name__ == "__main__":
    unittest.main(verbosity=2)

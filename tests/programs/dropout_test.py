#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train;strategies
"""With dropout, N ranks (processes: each has a generator of its own) train as one process with N micro-batches."""
import array
import csv
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402


def main():
    program = find_program("skein_phases")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def train(run_name, *arguments):
            """Losses by step and all weights."""
            weights = folder / f"{run_name}.bin"
            with Run([program, "--dropout", 0.3, "--runs", folder / "runs", "--run", run_name, "--weights", weights,
                      *arguments]) as run:
                run.check(run.wait() == 0, "it failed")
                run.check_nothing_left()
            with open(folder / "runs" / run_name / "metrics.csv", newline="") as rows:
                losses = [float(row["loss"]) for row in csv.DictReader(rows)]
            numbers = array.array("f")
            numbers.frombytes(weights.read_bytes())
            return losses, numbers

        oracles = {}

        def like_one_process(strategy, workers, accumulate, communicator):
            def case():
                parts = workers * accumulate
                if parts not in oracles:
                    oracles[parts] = train(f"single-{parts}", "--strategy", "single", "--accumulate", parts)
                losses, weights = train(f"{strategy}-{workers}-{accumulate}-{communicator}", "--strategy", strategy, "--workers", workers,
                                        "--accumulate", accumulate, "--communicator", communicator)
                wanted_losses, wanted = oracles[parts]
                assert len(losses) == len(wanted_losses) == 20, f"{len(losses)} steps"
                apart = max(abs(a / b - 1) for a, b in zip(losses, wanted_losses))
                assert apart < 1e-6, f"losses differ by {apart}"
                # Sums in another order differ in the last bit. Where the gradient of a weight nearly cancels, AdamW divides
                # by next to nothing, and how much then comes out depends on the kernels of this machine's processor: one
                # weight in a thousand may be off by more, and none by a part of a step, which is the rate of 1e-2.
                off = sorted((abs(a - b) for a, b in zip(weights, wanted)), reverse=True)
                apart = math.hypot(*off[len(off) // 1000:]) / math.hypot(*wanted)
                assert apart < 1e-6, f"weights differ by {apart}"
                assert off[0] < 1e-3, f"a weight differs by {off[0]}"
            return case

        def dropout_matters():
            other = train("one", "--strategy", "single")[0]
            assert max(abs(a / b - 1) for a, b in zip(other, oracles[2][0])) > 1e-4, "dropout draws nothing"

        run_cases([(f"{strategy}, {workers} processes, {accumulate} micro-batches each, {communicator}",
                    like_one_process(strategy, workers, accumulate, communicator))
                   for strategy, workers, accumulate, communicator in [
                       ("ddp", 2, 1, "shm"), ("zero1", 2, 1, "shm"), ("zero2", 3, 1, "shm"), ("fsdp", 2, 1, "ring"), ("fsdp", 2, 2, "shm"),
                       ("hybrid", 2, 1, "shm")]]
                  + [("other micro-batches draw other numbers", dropout_matters)],
                  sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""160_image_models: every network trains to the same bits under DDP and FSDP, and what it cannot train on is said in a line.

    image_models_test.py [WORD]     WORD: only the cases with it in their name
"""
import csv
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, environment, find_program, run_cases  # noqa: E402

STEPS = 3
FLAGS = ["--workers", 2, "--image", 32, "--steps", STEPS, "--plain"]
LARGE = ["--no-checkpoints", "--steps", STEPS - 1]


def main():
    program, tool = find_program("160_image_models"), find_program("skein")
    with tempfile.TemporaryDirectory(prefix="skein-images-") as name:
        folder = pathlib.Path(name)

        def rows(run):
            with open(folder / run / "metrics.csv", newline="", encoding="ascii") as file:
                return list(csv.DictReader(file))

        def train(run, model, strategy, *more):
            with Run([program, *FLAGS, "--model", model, "--strategy", strategy, "--batch", 4, "--runs", folder, "--run", run, *more]) as now:
                now.check(now.wait() == 0, "it failed")
                now.check_nothing_left()
            return rows(run)

        def same_bits(model, *more):
            def case():
                alone, sharded = (train(f"{model}-{strategy}", model, strategy, *more) for strategy in ("ddp", "fsdp"))
                steps = STEPS - 1 if more else STEPS
                assert len(alone) == len(sharded) == steps
                for a, b in zip(alone, sharded):
                    # Of the norm, a sum of the ranks' sums, the last digit may be another (docs/strategies.md).
                    assert abs(float(a.pop("grad_norm")) / float(b.pop("grad_norm")) - 1) < 1e-9
                    assert a == b, f"DDP {a}, FSDP {b}"
                losses = [row["loss"] for row in alone]
                assert len(set(losses)) == steps, f"nothing is learned: {losses}"
                if more:
                    return   # large: the last loss follows from the weights behind all steps but one
                assert [row["loss"] for row in train("other", model, "ddp", "--seed", 2, "--no-checkpoints")] != losses
                said = subprocess.run([tool, "checkpoint", "diff", folder / f"{model}-ddp", folder / f"{model}-fsdp"], capture_output=True, text=True,
                                      timeout=120, env=environment(), check=False)
                assert said.returncode == 0 and "tensors are equal" in said.stdout, said.stdout + said.stderr
            return case

        def refused(words, *arguments, command=(program, *FLAGS)):
            def case():
                with Run([*command, "--runs", folder, "--run", "refused", *arguments]) as run:
                    code = run.wait(60)
                    run.check(code == 2, f"exit code {code}, not 2")
                    lines = [line for line in run.stderr.splitlines() if line and line != "Run with --help for more information."]
                    run.check(len(lines) == 1, f"{len(lines)} lines for one mistake")
                    for word in words:
                        run.check(word in lines[0], f"'{word}' is not in the message")
                    run.check_nothing_left()
                assert not (folder / "refused").exists()
            return case

        run_cases([
            ("resnet18, DDP and FSDP", same_bits("resnet18")),
            ("resnet50, DDP and FSDP", same_bits("resnet50")),
            ("efficientnet_b0, DDP and FSDP", same_bits("efficientnet_b0")),
            ("efficientnet_b7, DDP and FSDP", same_bits("efficientnet_b7", *LARGE)),
            ("vit, DDP and FSDP", same_bits("vit", *LARGE)),
            ("a model that there is not", refused(["--model", "resnet19", "efficientnet_b7"], "--model", "resnet19")),
            ("a strategy that there is not", refused(["--strategy", "fdsp"], "--strategy", "fdsp")),
            ("images that are too small", refused(["error: images of 16 x 16 for efficientnet_b0", "use 32 or more"], "--model", "efficientnet_b0",
                                                  "--image", 16)),
            ("images that are no whole patches", refused(["error: images of 40 x 40 for vit", "16 x 16", "use a multiple of 16"], "--model", "vit",
                                                         "--image", 40)),
            ("norms of one value", refused(["error: a batch of 3 over 2 workers", "use larger images"], "--batch", 3)),
            ("one class", refused(["--classes", "1"], "--classes", 1)),
            ("more workers than images", refused(["workers", "batch"], "--image", 64, "--workers", 3, "--batch", 2)),
            ("heads of 240_hetero_vit that do not fit", refused(["error: 2 layers of width 30 with 4 heads"], "--dim", 30,
                                                                command=[find_program("240_hetero_vit"), "--steps", 1])),
        ], sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

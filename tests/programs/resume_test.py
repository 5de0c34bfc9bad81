#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is nobody's: what one strategy and number of workers saved, another goes on from.

    resume_test.py [--long] [WORD]     --long: every pair and case; WORD: only those with it in their name

The oracle is one process that trains all the way: every resumed run has to give its loss within LOSS_BOUND,
and exactly its steps, learning rates and place in the data. With two workers all strategies add the same two
numbers: there the loss is that of an undisturbed run of two workers byte by byte.
"""
import csv
import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, run_cases, write_text  # noqa: E402

BEFORE, AFTER, BATCH = 10, 20, 8
TEXT = 2500         # bytes: the first epoch ends in the middle of step 18, after the resume
LOSS_BOUND = 1e-6   # relative; float32 sums in another order, as in tests/train; measured: 3e-7

# strategy, workers and communicator; the first four pairs are those of CI
PAIRS = [("ddp 2", "fsdp 3"), ("fsdp 3", "single 1"), ("fsdp 2 ring", "fsdp 2 shm"), ("zero2 3", "zero1 2"),
         ("fsdp 2", "ddp 2"), ("zero1 2", "fsdp 2"), ("hybrid 2", "fsdp 2"), ("single 1", "fsdp 2"),
         ("fsdp 4", "fsdp 2"), ("fsdp 2", "zero2 3"), ("ddp 3", "single 1"), ("single 1", "zero1 3")]


def main():
    words = [w for w in sys.argv[1:] if w != "--long"]
    long = "--long" in sys.argv
    program = find_program("120_gpt_fsdp")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = write_text(folder, TEXT)
        done = {}

        def train(kind, place, steps, *more):
            """A run in a folder of its own; what it said."""
            strategy, workers, communicator = (kind.split() + ["automatic"])[:3]
            with Run([program, *TINY, "--layers", 2, "--text", text, "--runs", folder / place, "--run", "run", "--strategy", strategy,
                      "--workers", workers, "--communicator", communicator, "--steps", steps, "--batch", BATCH,
                      "--schedule", "constant", "--warmup", 0, *more]) as run:
                code = run.wait()
                run.check(code == 0, f"exit code {code}")
                run.check_nothing_left()
                return run.stderr

        def undisturbed(kind, steps):
            """The folder of such a run; each is trained once."""
            place = f"{kind} {steps}"
            if place not in done:
                train(kind, place, steps)
                done[place] = place
            return place

        def column(place, name):
            with open(folder / place / "run" / "metrics.csv", encoding="ascii") as file:
                return [row[name] for row in csv.DictReader(file)]

        def manifest(place, step):
            return json.loads((folder / place / "run" / "checkpoints" / f"step-{step:08}" / "manifest.json").read_text())

        def compare_losses(place, oracle=None):
            losses, wanted = column(place, "loss"), column(oracle or undisturbed("single 1", AFTER), "loss")
            assert len(losses) == len(wanted), f"{place}: {len(losses)} steps, not {len(wanted)}"
            worst = max(abs(float(a) / float(b) - 1) for a, b in zip(losses, wanted))
            print(f"        at most {worst:.1e} from one process", flush=True)
            assert worst <= LOSS_BOUND, f"{place}: the loss is off by {worst:.1e}: {losses}, not {wanted}"

        def goes_on(before, after):
            def case():
                place = f"{before} to {after}"
                shutil.copytree(folder / undisturbed(before, BEFORE), folder / place)
                said = train(after, place, AFTER, "--resume")
                assert f"resumed after step {BEFORE}" in said, f"{place}: it did not go on\n{said}"

                oracle = undisturbed("single 1", AFTER)
                for name in ("step", "lr"):
                    assert column(place, name) == column(oracle, name), f"{place}: other {name}: {column(place, name)}"
                for what in ("sampler", "optimizer", "seed"):
                    got, wanted = manifest(place, AFTER)["extra"][what], manifest(oracle, AFTER)["extra"][what]
                    assert got == wanted, f"{place}: {what} {got}, not {wanted}"
                assert manifest(place, AFTER)["extra"]["sampler"]["epoch"] == 1, "this text is one epoch long"
                worlds = [manifest(place, step)["world_size"] for step in (BEFORE, AFTER)]
                assert worlds == [int(k.split()[1]) for k in (before, after)], f"{place}: saved by {worlds} ranks"

                compare_losses(place, oracle)
                if worlds == [2, 2]:
                    bits = column(undisturbed("ddp 2", AFTER), "loss")
                    assert column(place, "loss") == bits, f"{place}: other bits than undisturbed"
            return case

        def broken_newest():
            """Other ranks than those that saved read it, each a share: all have to turn to the one before."""
            place = "broken"
            train("fsdp 2", place, BEFORE, "--checkpoint-every", BEFORE // 2)
            shard = folder / place / "run" / "checkpoints" / f"step-{BEFORE:08}" / "shard-1-of-2.safetensors"
            data = bytearray(shard.read_bytes())
            data[len(data) * 3 // 4] ^= 1
            shard.write_bytes(data)
            said = train("fsdp 3", place, AFTER, "--resume")
            assert f"checkpoint of step {BEFORE} refused" in said and "shard-1-of-2" in said, f"the damage is not told\n{said}"
            assert f"resumed after step {BEFORE // 2}" in said, f"it did not go on from the one before\n{said}"
            compare_losses(place)

        def narrow():
            """Matrices of two rows between four ranks, in one memory and gathered."""
            tiny = ("--dim", 2, "--heads", 1)
            for kind in ("single 1", "fsdp 4 shm", "fsdp 4 ring"):
                train(kind, f"narrow {kind}", 5, *tiny)
                compare_losses(f"narrow {kind}", "narrow single 1")

        cases = [(f"{before} goes on as {after}", goes_on(before, after)) for before, after in (PAIRS if long else PAIRS[:4])]
        if long:    # in CI: tests/train, checkpoint_shards_test and shard_layout_test
            cases += [("a flipped byte in the newest checkpoint: three ranks go on from the one before", broken_newest),
                      ("more ranks than rows", narrow)]
        run_cases(cases, words[0] if words else None)


if __name__ == "__main__":
    main()

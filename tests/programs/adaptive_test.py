#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train adaptive
"""A training whose batch follows its gradients: the same decisions give the same bits, whatever happens to its workers.

adaptive_test.py [CASE]
"""
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402
from training import ended, lives, rows, tensors, views  # noqa: E402

EXAMPLE = find_program("320_adaptive_mnist")
CHANGES = [(10, 64, 128), (25, 128, 200), (40, 200, 72), (60, 72, 96), (80, 96, 64)]     # step, from, to


def example(folder, *more, workers="2", name="adaptive", samples="1600"):
    return [EXAMPLE, "--workers", workers, "--samples", samples, "--test", "200", "--epochs", "6", "--plain", "--eval-every", "40",
            "--checkpoint-every", "20", "--runs-dir", folder, "--name", name, *more]


def write_decisions(folder, changes=None):
    path = pathlib.Path(folder, "decisions.jsonl")
    path.write_text("".join(json.dumps({"step": step, "rule": "adaptive_batch", "what": "global_batch", "from": a, "to": b, "why": "a test"}) + "\n"
                            for step, a, b in (CHANGES if changes is None else changes)))
    return path


def result_of(run_folder):
    return (run_folder / "metrics.csv").read_bytes(), tensors(run_folder)


def column(run_folder, name):
    lines = (run_folder / "metrics.csv").read_text().splitlines()
    at = lines[0].split(",").index(name)
    return [float(line.split(",")[at]) for line in lines[1:]]


def batches(run_folder):
    return [int(size) for size in column(run_folder, "global_batch")]


def plans(run_folder):
    """The size of the batch from each step on at which it changes, by the run's own events."""
    events = map(json.loads, (run_folder / "events.jsonl").read_text().splitlines())
    return {event["step"]: event["to"] for event in events if event.get("what") == "global_batch"}


def same_for_any_workers():
    """Logical shards: one, two and three workers, killed and resumed ones too, and one to four of which some are lost and join."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        base = pathlib.Path(folder)
        shards = ["--logical-shards", 8, "--replay", write_decisions(folder), "--max-failures", "1000"]
        found = {}
        for workers in ("1", "2", "3"):
            with Run(example(base / workers, *shards, workers=workers)) as run:
                ended(run)
            found[workers] = result_of(base / workers / "adaptive")
        run.check(found["1"] == found["2"] == found["3"], "the number of workers shows")
        sizes = batches(base / "1" / "adaptive")
        run.check([sizes[step] for step, _, _ in CHANGES] == [to for _, _, to in CHANGES], f"other batches: {sizes}")

        with Run(example(base / "killed", *shards)) as run:
            run.wait_until(lambda: rows(base / "killed" / "adaptive") > 45, "rows")
            for pid in run.marked.processes():
                os.kill(pid, signal.SIGKILL)
            run.wait()
        with Run(example(base / "killed", *shards, "--resume")) as run:
            ended(run)
            run.check(result_of(base / "killed" / "adaptive") == found["1"], "a kill shows")

        with Run(example(base / "elastic", *shards, workers="1:4")) as run:
            draw, worlds = random.Random(1), 0
            while worlds < 5 and run.process.poll() is None:
                run.wait_until(lambda: run.process.poll() is not None or (len(views(run)) > worlds and all(map(lives, views(run)[-1]))), "world")
                if run.process.poll() is not None:
                    break
                worlds, at = len(views(run)), rows(base / "elastic" / "adaptive")
                run.wait_until(lambda: run.process.poll() is not None or rows(base / "elastic" / "adaptive") > at + 3, "steps")
                victims = [pid for pid in views(run)[-1] if lives(pid)]
                if run.process.poll() is None and len(victims) > 1:
                    os.kill(draw.choice(victims), signal.SIGKILL)
            ended(run)
            run.check(result_of(base / "elastic" / "adaptive") == found["1"], f"{worlds} worlds show")


def own_decisions_again():
    """Without shards, two workers: what a run decides by its clock, another one takes from its file."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        base = pathlib.Path(folder)
        with Run(example(base, "--decide-every", 0, "--decide-steps", 10)) as run:
            ended(run)
            counts = [(int(a), int(b)) for a, b in re.findall(r"adaptive +(\d+)/(\d+) ", run.stderr)]
            run.check(counts and counts[-1][0] == counts[-1][1] and all(a <= b for a, b in counts), f"steps of how many? {counts}")
        events = base / "adaptive" / "events.jsonl"
        if not events.is_file() or "adaptive_batch" not in events.read_text():
            return print("no decision: a sample costs the same in every batch here")
        with Run(example(base, "--replay", events, name="again")) as run:
            ended(run)
            run.check(result_of(base / "again") == result_of(base / "adaptive"), "other bits")
            print("batches:", sorted(set(batches(base / "adaptive"))))


def decides_under_kills():
    """Workers are lost and join while a rule decides by the clock every ten steps: the plans of all worlds make one chain."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        base = pathlib.Path(folder)
        with Run(example(base, "--decide-every", 0, "--decide-steps", 10, "--max-failures", "1000", workers="1:3")) as run:
            draw, worlds = random.Random(2), 0
            while worlds < 6 and run.process.poll() is None:
                run.wait_until(lambda: run.process.poll() is not None or (len(views(run)) > worlds and all(map(lives, views(run)[-1]))), "world")
                if run.process.poll() is not None:
                    break
                worlds, at = len(views(run)), rows(base / "adaptive")
                run.wait_until(lambda: run.process.poll() is not None or rows(base / "adaptive") > at + 12, "steps")
                victims = [pid for pid in views(run)[-1] if lives(pid)]
                if run.process.poll() is None and len(victims) > 1:
                    os.kill(draw.choice(victims), signal.SIGKILL)
            ended(run)
        sizes, changes = batches(base / "adaptive"), plans(base / "adaptive")
        run.check(worlds > 2, f"{worlds} worlds")
        at = 64
        for step, size in enumerate(sizes):
            at = changes.get(step, at)
            run.check(size == at, f"step {step}: {size} samples, {at} by the events {changes}")
        print(f"{worlds} worlds, {len(changes)} changes of the batch, {len(sizes)} steps")


def loss_does_not_jump():
    """A larger batch with its rate does no harm: no mean of five losses behind a change is above that of the ten before by a fifth."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        base = pathlib.Path(folder)
        changes = [(50, 64, 128), (75, 128, 256), (100, 256, 512), (115, 512, 256), (130, 256, 64)]
        replay = ["--replay", write_decisions(folder, changes)]
        for name, more in (("sgd", []), ("adamw", ["--adam", "--rule", "adamscale", "--lr", "0.002"])):
            with Run(example(base, *replay, *more, name=name, samples="4000")) as run:
                ended(run)
            losses = column(base / name, "loss")
            for step, before, after in changes:
                run.check(len(losses) > step + 5, f"{name}: {len(losses)} steps")
                was, now = sum(losses[step - 10:step]) / 10, sum(losses[step:step + 5]) / 5
                print(f"{name}: step {step}, {before} -> {after}: loss {was:.3f}, then {now:.3f}")
                run.check(now <= 1.2 * was, f"{name}: a change from {before} to {after} at step {step} takes the loss from {was:.3f} to {now:.3f}")


def accumulation():
    """A worker that may compute eight samples at once has 32 of them in four parts."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        base = pathlib.Path(folder)
        with Run(example(base, "--accumulation", "--hi", 8, "--decide-every", 0, "--decide-steps", 10)) as run:
            ended(run)
        config = json.loads((base / "adaptive" / "config.json").read_text())
        run.check("adaptive_batch" in json.dumps(config), "its settings are not in config.json")
        first = json.loads((base / "adaptive" / "events.jsonl").read_text().splitlines()[0])
        run.check((first["step"], first["what"], first["from"], first["to"]) == (0, "micro_batches", 1, 4), f"another plan: {first}")


def cut():
    """What two workers cannot hold is cut at the start, which is an event."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        with Run(example(folder, "--hi", 16)) as run:
            ended(run)
            line = "step 0: adaptive_batch: global_batch 64 -> 32: 2 workers that compute 1 to 16 samples at once"
            run.check(line in run.stderr, "no line")


def refused():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        other, cut = pathlib.Path(folder, "other"), pathlib.Path(folder, "cut")
        other.mkdir()
        cut.write_text('{"step":10,"rule":"adaptive_ba')
        for arguments, text in ((["--max", "32"], "a max of 32 samples, the run begins with 64"),
                                (["--max", "9999"], "a max of 9999 samples, the data set has 1600"),
                                (["--lo", "9", "--hi", "8"], "9 to 8 samples of a rank at once"),
                                (["--adam"], "the rate rule adascale does not suit the optimizer adamw"),
                                (["--rule", "adamscale"], "a look at preconditioned gradients with optimizer sgd"),
                                (["--replay", cut], "cut, line 1"),
                                (["--replay", pathlib.Path(folder, "none")], "none"),
                                (["--replay", write_decisions(other, [(5, 32, 128)])], "goes from 32 to 128 there, here it is 64")):
            with Run(example(folder, *arguments)) as run:
                code = run.wait()
                run.check(code in (1, 2), f"{arguments}: exit code {code}")
                run.check(text in run.stderr, f"{arguments}: no {text!r}")
                run.check(not run.left_behind(), "something is left behind")


if __name__ == "__main__":
    run_cases([("the same for any workers", same_for_any_workers), ("own decisions again", own_decisions_again),
               ("decides under kills", decides_under_kills), ("loss does not jump", loss_does_not_jump), ("accumulation", accumulation), ("cut", cut),
               ("refused", refused)], sys.argv[1] if len(sys.argv) > 1 else None)

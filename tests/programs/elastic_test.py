#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train
"""A training whose workers are lost, leave and join has the bits of one undisturbed worker, and leaves nothing behind.

elastic_test.py [--events N] [--data DIR] [--seed S] [CASE]    by hand: --events 200, and MNIST's files (.gz or not) in DIR
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, run_cases, write_text  # noqa: E402
from training import ended, lives, rows, tensors, views  # noqa: E402

asking = argparse.ArgumentParser()
asking.add_argument("--events", type=int, default=6)
asking.add_argument("--data")
asking.add_argument("--seed", type=int, default=1)
asking.add_argument("case", nargs="?")
asked = asking.parse_args()

EXAMPLE = find_program("300_elastic_mnist")
PROGRAM = find_program("skein_elastic")
STEPS_OF_AN_EVENT = 100     # so that none comes behind the end


# ---- the same bits, whatever happens -------------------------------------------------------------

def example(folder, workers, steps, shards=8):
    data = ["--data", asked.data] if asked.data else ["--samples", "1600", "--test", "200"]
    return [EXAMPLE, "--workers", workers, "--logical-shards", shards, "--steps", steps, "--checkpoint-every", "100", "--plain", "--max-failures", "100000",
            "--runs-dir", folder, *data]


class Disturbance:
    """Does one thing after the other to a run, each when the one before has been seen."""

    def __init__(self, run, folder, draw):
        self.run, self.folder, self.draw = run, folder, draw
        self.done = []
        self.most = 4       # a worker that was told to leave is not replaced

    def newest(self):
        found = views(self.run)
        return found[-1] if found else []

    def settled(self):
        """The newest world's ranks all live, and the run goes on with them."""
        world = self.newest()
        if not world or not all(map(lives, world)):
            return False
        at = (len(views(self.run)), rows(self.folder))
        if self.seen is None or self.seen[0] != at[0]:
            self.seen = at
        return at[1] >= self.seen[1] + self.wanted

    def until_settled(self):
        self.seen, self.wanted = None, self.draw.randint(1, 8)
        self.run.wait_until(lambda: self.settled() or self.run.process.poll() is not None, f"world that works, after {self.done[-3:]}")
        return self.run.process.poll() is None

    def act(self):
        """One event; the survivors keep their processes."""
        world = self.newest()
        kinds = ["kill", "kill", "kill first", "stop"] + ["kill two"] * (len(world) > 2) + ["leave"] * (self.most > 3 and len(world) > 1)
        if len(world) < self.most and self.draw.random() < 0.5:     # a world of all, now and then
            count = len(views(self.run))
            self.run.wait_until(lambda: len(views(self.run)) > count or self.run.process.poll() is not None, "rank that joins")
            self.done.append("join")
            return
        kind = self.draw.choice(kinds)
        victims = [world[0]] if kind == "kill first" else self.draw.sample(world, 2 if kind == "kill two" else 1)
        how = {"stop": signal.SIGSTOP, "leave": signal.SIGTERM}.get(kind, signal.SIGKILL)
        self.most -= kind == "leave"
        count = len(views(self.run))
        for pid in victims:
            os.kill(pid, how)
        self.done.append(f"{kind} of rank {'and'.join(str(world.index(pid)) for pid in victims)} of {len(world)}")
        self.run.wait_until(lambda: len(views(self.run)) > count and not any(map(lives, victims)) or self.run.process.poll() is not None,
                            f"world without them: {self.done[-1]}")
        if self.run.process.poll() is not None:
            return
        after = views(self.run)[count]
        kept = [pid for pid in world if pid not in victims]
        self.run.check(after[:len(kept)] == kept, f"{self.done[-1]}: of {world} went on {after}, not {kept} first")


def same_bits():
    steps = asked.events * STEPS_OF_AN_EVENT
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        whole, disturbed, temporary = (pathlib.Path(folder, name) for name in ("whole", "disturbed", "temporary"))
        temporary.mkdir()
        with Run(example(whole, "1", steps)) as run:
            ended(run, seconds=3600)
        draw = random.Random(asked.seed)
        with Run(example(disturbed, "1:4", steps), TMPDIR=temporary) as run:
            what = Disturbance(run, disturbed / "elastic", draw)
            while len(what.done) < asked.events and what.until_settled():
                what.act()
            ended(run, seconds=3600)
            run.check(len(what.done) >= asked.events, f"the run ended behind {len(what.done)} of {asked.events} events")
            first, second = tensors(whole / "elastic"), tensors(disturbed / "elastic")
            run.check(first[0] == second[0], f"{second[0]} is the last checkpoint, not {first[0]}")
            unlike = [name for name in first[1] if first[1][name] != second[1].get(name)]
            run.check(not unlike, f"other bits after {what.done}: {unlike}")
            files = [(f / "elastic" / "metrics.csv").read_bytes() for f in (whole, disturbed)]
            run.check(files[0] == files[1], f"another metrics.csv after {what.done}")
            events = [json.loads(line) for line in (disturbed / "elastic" / "events.jsonl").read_text().splitlines()]
            run.check(len([e for e in events if e.get("rule") == "world"]) >= asked.events, "changes are not in events.jsonl")
            left = list(temporary.iterdir())
            run.check(not left, f"temporary files: {left}")
        kinds = {}
        for event in what.done:
            kinds[event.split(" of ")[0]] = kinds.get(event.split(" of ")[0], 0) + 1
        print(f"{len(what.done)} events: {kinds}; {steps} steps, {len(events)} rows of events.jsonl")


def each_digit_once():
    """Without logical shards: whatever happens, each digit is learned from exactly once in each pass."""
    events = max(4, asked.events // 4)
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        with Run(example(folder, "1:4", events * STEPS_OF_AN_EVENT, shards=0)) as run:
            what = Disturbance(run, pathlib.Path(folder, "elastic"), random.Random(asked.seed + 1))
            while len(what.done) < events and what.until_settled():
                what.act()
            ended(run, seconds=3600)
            run.check(len(what.done) >= events, f"the run ended behind {len(what.done)} of {events} events")
            found = [json.loads(line) for line in pathlib.Path(folder, "elastic", "metrics.jsonl").read_text().splitlines()]
            passes = [row["train_epoch_seen_once"] for row in found if "train_epoch_seen_once" in row]
            samples, = map(int, re.findall(r"of (\d+) digits were learned from exactly once", run.stdout))
            run.check(len(passes) > 1 and set(passes[:-1]) == {samples}, f"{samples} digits, {passes} after {what.done}")


# ---- bad input, bad luck -------------------------------------------------------------------------

class Small:
    """A run of skein_elastic whose ranks do what files say."""

    def __init__(self, *arguments, workers="1:3", ready=None, env=None):
        self.arguments, self.workers, self.ready, self.env = arguments, workers, ready, env or {}

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="skein-test-")
        self.asked = pathlib.Path(self.scratch.name, "asked")
        self.asked.mkdir()
        self.run = Run([PROGRAM, "--workers", self.workers, "--runs", self.scratch.name, "--asked", self.asked, *self.arguments], **self.env)
        if self.ready:
            self.run.wait_until(lambda: self.world(self.ready), f"world of {self.ready}")
        return self

    def __exit__(self, *how):
        self.run.__exit__(*how)
        self.scratch.cleanup()

    def ask(self, what, value=""):
        part = self.asked / (what + ".part")
        part.write_text(str(value))
        part.rename(self.asked / what)

    def world(self, many):
        """The newest world, if it has so many ranks and they live."""
        found = views(self.run)
        return found[-1] if found and len(found[-1]) == many and all(map(lives, found[-1])) else None

    def until_world(self, many, unlike=None):
        return self.run.wait_until(lambda: (w := self.world(many)) and w != unlike and w, f"world of {many}")

    def goes_on(self, steps=5):
        at = rows(pathlib.Path(self.scratch.name, "elastic"))
        self.run.wait_until(lambda: rows(pathlib.Path(self.scratch.name, "elastic")) >= at + steps, "further steps")

    def stop(self):
        self.ask("stop")
        ended(self.run)


def refused(arguments, *texts, seconds=60):
    with Run(arguments) as run:
        code = run.wait(seconds)
        run.check(code in (1, 2), f"exit code {code}")
        for text in texts:
            run.check(re.search(text, run.stderr), f"no {text!r} in what it says")
        left = run.left_behind()
        run.check(not left, f"left behind: {left}")


def scaled_by_its_process():
    """A program that was started alone is named to skein scale by its process id; nobody else's token is heard."""
    scale = [find_program("skein"), "scale"]
    mine = dict(SKEIN_TOKEN="11" * 32)
    with Small(workers="1:3", env=mine, ready=3) as small:
        pid = small.run.process.pid
        with Run([*scale, pid, 2], **mine) as run:
            run.check(run.wait(60) == 0 and re.search(r"job job-[0-9a-f]+ wants 2 workers now \(1 to 3 are possible\)", run.stdout), "no answer")
        small.until_world(2)
        with Run([*scale, pid, 3], SKEIN_TOKEN="22" * 32) as run:
            run.check(run.wait(60) != 0 and "token" in run.stderr, "another one's token is heard")
        with Run([*scale, small.world(2)[0], 3], **mine) as run:
            run.check(run.wait(60) != 0, "a rank leads the job?")
            # Other tests of this host may have jobs of their own at the same time.
            leaders = re.search(r"those that do: ([\d, ]+)", run.stderr)
            run.check(leaders and str(pid) in leaders[1].split(", "), "the leader is not named")
        with Run([*scale, "J", 3], **mine) as run:
            run.check(run.wait(60) == 2 and "no --rdzv-endpoint" in run.stderr, "which job?")
        with Run([*scale, pid, 3], **mine) as run:
            run.check(run.wait(60) == 0, "it failed")
        small.until_world(3)
        small.stop()


def more_than_most():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        refused([EXAMPLE, "--workers", "4:1", "--runs-dir", folder], "4:1", "fewest come first")


def settings_of_a_run():
    """What --rdzv-conf cannot be."""
    for setting in ("silence=soon", "silence=0", "silence=-1", "silence="):
        with Run([find_program("skein"), "run", "--standalone", "--rdzv-conf", setting, "true"]) as run:
            run.check(run.wait(60) == 2 and "--rdzv-conf silence" in run.stderr and "a number from 1 on is wanted" in run.stderr, f"{setting}: another answer")


def small_batch():
    """A batch that has no sample for each of the most workers is refused before anything starts."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        refused([EXAMPLE, "--workers", "1:4", "--batch", "2", "--runs-dir", folder], "batch", "4")


def stream():
    with Small("--stream") as small:
        code = small.run.wait(60)
        small.run.check(code == 1, f"exit code {code}")
        small.run.check("streams with a state for each rank, in a run whose ranks change" in small.run.stderr, "no reason")


def exception():
    """What the user's code throws ends the job: another worker would throw it again."""
    with Small(ready=3) as small:
        small.ask("throw")
        ended(small.run, 1, 60)
        small.run.check("this loss has had enough" in small.run.stderr, "no reason")


def dies_on_every_start():
    """One that never comes holds nobody; when the budget is spent, the job ends and says so."""
    with Small(ready=3) as small:
        small.ask("die")
        world = small.until_world(3)
        os.kill(world[1], signal.SIGKILL)
        ended(small.run, 1, 120)
        small.run.check(re.search(r"killed by signal 9|SIGKILL", small.run.stderr), "no reason")


def exits_early():
    """exit() amid the training is a bug of the program, which others have too: the job ends and names the rank."""
    with Small(ready=3) as small:
        small.ask("exit")
        ended(small.run, 1, 60)
        small.run.check(re.search(r"worker \d+ \(pid \d+ at .*\) exited before the job was done", small.run.stderr), "no reason")


def joiner_of_another(what, value, text):
    """It is refused by name, and the others go on."""
    with Small(ready=3) as small:
        world = small.until_world(3)
        small.ask(what, value)
        os.kill(world[2], signal.SIGKILL)
        small.until_world(2)
        small.run.wait_until(lambda: re.search(text, small.run.stderr), f"refusal: {text}")
        small.goes_on()
        small.run.check(all(map(lives, world[:2])), "the others did not go on")
        (small.asked / what).unlink()
        small.stop()


def hangs_while_loading():
    """It holds nobody, and not the end either."""
    with Small(ready=3) as small:
        world = small.until_world(3)
        small.ask("hang")
        os.kill(world[1], signal.SIGKILL)
        small.until_world(2)
        small.goes_on()
        small.stop()


def lost_in_turn():
    """Each rank in turn, by its own hand, amid a step; the first one too."""
    with Small(ready=3) as small:
        for _ in range(3):
            world = small.until_world(3)
            small.ask("kill")
            small.until_world(3, unlike=world)
            small.goes_on()
            (small.asked / "kill.taken").unlink()
        small.stop()


def unpack(folder):
    """MNIST's files, unpacked where they are packed."""
    into = tempfile.mkdtemp(prefix="skein-test-")
    for path in pathlib.Path(folder).glob("*-ubyte*"):
        raw = path.read_bytes()
        pathlib.Path(into, path.name.removesuffix(".gz")).write_bytes(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return into


if __name__ == "__main__":
    if asked.data:
        asked.data = unpack(asked.data)
    run_cases([("the same bits", same_bits), ("each digit once", each_digit_once), ("more than most", more_than_most), ("small batch", small_batch),
               ("settings of a run", settings_of_a_run), ("scaled by its process", scaled_by_its_process), ("stream", stream),
               ("exception", exception), ("dies on every start", dies_on_every_start), ("exits early", exits_early),
               ("other model", lambda: joiner_of_another("width", 48, "model")),
               ("other batch", lambda: joiner_of_another("batch", 36, "batch")),
               ("hangs while loading", hangs_while_loading), ("lost in turn", lost_in_turn)], asked.case)

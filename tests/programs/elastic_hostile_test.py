#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train
"""What bad luck and bad users do to an elastic training: each step is in its files once, nothing starts again in silence.

elastic_hostile_test.py [--kills N] [--seed S] [CASE]    by hand: --kills 45
"""
import argparse
import contextlib
import csv
import os
import pathlib
import random
import re
import resource
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402

asking = argparse.ArgumentParser()
asking.add_argument("--kills", type=int, default=10)
asking.add_argument("--seed", type=int, default=1)
asking.add_argument("case", nargs="?")
asked = asking.parse_args()

PROGRAM = find_program("skein_elastic_hostile")
SAMPLES, HELD_OUT = 512, 64


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Training(Run):
    """A run in a folder of its own, or in that of another one."""

    def __init__(self, *arguments, workers="1:3", folder=None, limit=None, **env):
        self.scratch = None if folder else tempfile.TemporaryDirectory(prefix="skein-test-")
        self.folder = pathlib.Path(folder or self.scratch.name)
        self.told = self.folder / "told"
        self.told.mkdir(exist_ok=True)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            super().__init__([PROGRAM, "--workers", workers, "--runs-dir", self.folder, "--told", self.told, *arguments], **env)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def __exit__(self, *how):
        super().__exit__(*how)
        if self.scratch:
            self.scratch.cleanup()

    def worlds(self):
        """The process ids of each world in turn, in the order of ranks."""
        return [[int(pid) for pid in found.split()] for found in re.findall(r": pid ((?:\d+ ?)+)", self.stderr + self.stdout)]

    def world(self, many):
        """The newest one, if it has so many ranks and all live."""
        found = self.worlds()
        return found[-1] if found and len(found[-1]) == many and all(map(lives, found[-1])) else None

    def rows(self):
        try:
            with open(self.folder / "elastic" / "metrics.csv", newline="") as file:
                return list(csv.DictReader(file))
        except OSError:
            return []

    def until(self, many, steps=5):
        """A world of so many that has made further steps; its process ids."""
        world = self.wait_until(lambda: self.world(many), f"world of {many}")
        at = len(self.rows())
        self.wait_until(lambda: len(self.rows()) >= at + steps, f"{steps} further steps", 60)
        return world

    def ends(self, code):
        got = self.wait(90)
        self.check(got == code, f"exit code {got}, not {code}")
        left = self.left_behind()
        self.check(not left, f"left behind: {left}")

    def each_step_once(self, last=None):
        steps = [int(row["step"]) for row in self.rows()]
        self.check(steps == list(range(1, len(steps) + 1)), f"rows of steps {steps}")
        self.check(last is None or len(steps) == last, f"{len(steps)} rows, not {last}")

    def each_told_once(self):
        """Each process heard of a step at most once, and knows how many there were before it came."""
        for file in self.told.iterdir():
            heard = [line.split() for line in file.read_text().splitlines() if line.startswith("step")] if file.is_file() else []
            steps = [int(words[1]) for words in heard]
            self.check(len(set(steps)) == len(steps), f"{file.name} heard of steps twice: {steps}")
            wrong = [words for words in heard if words[1] != words[-1]]
            self.check(not wrong, f"{file.name} has counted wrong: {wrong[:3]}")

    def each_sample_once(self):
        for row in self.rows():
            for name, samples in (("train_epoch_seen_once", SAMPLES), ("val_seen_once", HELD_OUT)):
                self.check(row.get(name) in (None, "", str(samples)), f"{name} {row.get(name)} at step {row['step']}")


# ---- losses ----------------------------------------------------------------------------------------

def many_kills():
    """Members, first ranks, joiners, two at once, in evaluation and checkpoints."""
    draw = random.Random(asked.seed)
    with Training("--epochs", 4000, "--failures", 1000, "--checkpoint-every", 5, "--eval-every", 5, "--pause", 4) as run:
        run.until(3)
        done = 0
        while done < asked.kills:
            world = [pid for pid in (run.worlds() or [[]])[-1] if lives(pid)]
            joining = [pid for pid in run.children() if pid not in world]
            kind = draw.choice(["first", "any", "two", "joiner", "stop"])
            victims = joining[:1] if kind == "joiner" else world[:1] if kind == "first" else draw.sample(world, min(len(world), 1 + (kind == "two")))
            hit = 0
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):    # it has ended meanwhile: told to go, or stopped before
                    os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
                    hit += 1
            done += hit
            # Sometimes amid the change, sometimes behind it.
            if draw.random() < 0.5 and hit:
                at = len(run.worlds())
                run.wait_until(lambda: len(run.worlds()) > at, f"world after {kind}", 60)
        at = len(run.worlds()[-1:]) and int(run.rows()[-1]["step"]) if run.rows() else 0
        run.wait_until(lambda: run.rows() and int(run.rows()[-1]["step"]) > at + 10, "further steps", 60)
        os.kill(run.process.pid, signal.SIGTERM)
        run.ends(128 + signal.SIGTERM)
        run.each_step_once()
        run.each_told_once()
        run.each_sample_once()


def all_at_once():
    """The next ones go on from the last checkpoint; one that is lost before its first step costs no row."""
    with Training("--epochs", 4000, "--failures", 100, "--checkpoint-every", 5, "--pause", 4) as run:
        world = run.until(3, 12)
        before = len(run.rows())
        for pid in world:
            os.kill(pid, signal.SIGKILL)
        run.wait_until(lambda: "resumed after step" in run.stderr + run.stdout, "resumption")
        first = run.worlds()[-1]
        os.kill(first[0], signal.SIGKILL)
        run.wait_until(lambda: len(run.rows()) > before + 10, "further steps", 60)
        os.kill(run.process.pid, signal.SIGINT)
        run.ends(128 + signal.SIGINT)
        resumed = int(re.search(r"resumed after step (\d+)", run.stderr + run.stdout)[1])
        run.check(resumed >= before - 6, f"resumed after step {resumed} of {before}")
        run.each_step_once()


def all_told_to_go():
    """SIGTERM to each worker, not to the supervisor: who comes has the state of one that goes."""
    with Training("--epochs", 4000, "--pause", 4) as run:
        world = run.until(3)
        for pid in world:
            os.kill(pid, signal.SIGTERM)
        run.wait_until(lambda: run.worlds()[-1] and not set(run.worlds()[-1]) & set(world), "world of others")
        at = len(run.rows())
        run.wait_until(lambda: len(run.rows()) > at + 5, "further steps", 60)
        os.kill(run.process.pid, signal.SIGTERM)
        run.ends(128 + signal.SIGTERM)
        heard = [int(re.search(r"^step (\d+)", file.read_text(), re.M)[1])
                 for file in run.told.iterdir() if int(file.name) not in world and "step" in file.read_text()]
        run.check(heard and min(heard) > 5, f"the first steps of those that came: {heard}")
        run.each_step_once()
        run.each_told_once()


def supervisor():
    with Training("--epochs", 4000, "--pause", 4) as run:
        run.until(3)
        run.process.kill()
        run.process.wait()
        left = run.left_behind()
        run.check(not left, f"left behind: {left}")
        run.each_step_once()


# ---- stops -----------------------------------------------------------------------------------------

def other_number():
    """Stopped amid an epoch by a signal to all processes, as a terminal sends it, and amid a change; resumed with others."""
    steps = 2 * -(-SAMPLES // 24)
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        with Training("--epochs", 2, "--pause", 10, folder=folder) as run:
            world = run.until(3)
            os.kill(world[1], signal.SIGKILL)
            os.killpg(run.process.pid, signal.SIGINT)
            run.ends(128 + signal.SIGINT)
            run.each_step_once()
            run.check(len(run.rows()) < steps, "it was done before it was stopped")
        with Training("--epochs", 2, "--resume", workers=2, folder=folder) as run:
            run.ends(0)
            run.each_step_once(steps)
            run.each_sample_once()
            run.check(run.rows()[-1]["train_epoch_seen_once"] == str(SAMPLES), "no count of samples")
            rates = [float(row["lr"]) for row in run.rows()]
        with Training("--epochs", 2) as quiet:
            quiet.ends(0)
            quiet.check(rates == [float(row["lr"]) for row in quiet.rows()], f"other rates: {rates}")


def twice():
    with Training("--epochs", 4000, "--pause", 900) as run:    # a step takes longer than two signals
        run.wait_until(lambda: run.world(3), "world of 3")
        os.kill(run.process.pid, signal.SIGTERM)
        run.wait_until(lambda: "stopping after this step" in run.stderr, "word on the first")
        os.kill(run.process.pid, signal.SIGTERM)
        run.ends(128 + signal.SIGTERM)


# ---- users -----------------------------------------------------------------------------------------

def user(option, text):
    with Training("--epochs", 2, option, 6, "--checkpoint-every", 5) as run:
        run.ends(1)
        errors = [line for line in run.stderr.splitlines() if line.startswith("error")]
        run.check(len(errors) == 1 and re.search(text, errors[0]), f"not one error with {text!r}")
        run.each_step_once(6)


def nothing_grows():
    """Descriptors, threads and mappings of one that stays, and of the supervisor, with few descriptors to have."""
    with Training("--epochs", 4000, "--failures", 100, "--pause", 2, workers="1:2", limit=48) as run:
        stays = run.until(2)[0]

        def has():
            return [(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))) for pid in (stays, run.process.pid)]

        seen = []
        for _ in range(4):
            world = run.until(2)
            seen.append(has())
            os.kill([pid for pid in world if pid != stays][0], signal.SIGKILL)
            run.wait_until(lambda: run.world(1), "world of 1")
        run.until(2)
        now = has()
        run.check(all(a <= b for a, b in zip(sum(now, ()), sum(seen[1], ()))), f"{seen}, then {now}")
        zombies = [pid for pid in run.children() if not lives(pid)]
        run.check(not zombies, f"nobody has waited for {zombies}")
        os.kill(run.process.pid, signal.SIGTERM)
        run.ends(128 + signal.SIGTERM)


if __name__ == "__main__":
    run_cases([("many kills", many_kills), ("all at once", all_at_once), ("all told to go", all_told_to_go),
               ("supervisor", supervisor), ("other number", other_number), ("twice", twice),
               ("user throws", lambda: user("--throw", "this loss has had enough.*")),
               ("user exits", lambda: user("--exit", r"worker \d+ \(pid \d+ at .*\) exited before the job was done")),
               ("not finite", lambda: user("--nan", "not finite on rank . at step 7")),
               ("nothing grows", nothing_grows)], asked.case)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers and supervisors are killed at random moments; the loss curve must not show it.

    kill_test.py                                              as in CI: DDP, and two kills under FSDP, and two during saves
    kill_test.py --strategy fsdp --kills 20 [--communicator ring] [--seed S]
    kill_test.py --during-save 30 [--strategy fsdp]           while a save is written beside training

Each killed run has to end by itself with exit code 0, the same bytes in metrics.csv and in the last
checkpoint's tensors as an undisturbed run, and to leave no process, socket, shared memory or unfinished
file behind. Over the ring the blocks of FSDP are gathered one by one, over shared memory nothing is.
"""
import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, run_cases, write_text  # noqa: E402


class Job:
    """One kind of run, under every name in one folder."""

    def __init__(self, folder, strategy, communicator, steps=120, beside=False):
        self.label = strategy if communicator == "automatic" else f"{strategy} over {communicator}"
        self.folder, self.steps, self.every = folder / f"{strategy}-{communicator}-{beside}", steps, 5 if beside else 10
        if beside:
            self.label += ", saves beside training"
        self.scratch = self.folder / "tmp"
        self.scratch.mkdir(parents=True)
        self.text = write_text(self.folder)
        program = [find_program("110_gpt_ddp")]
        if strategy != "ddp" or communicator != "automatic":
            program = [find_program("120_gpt_fsdp"), "--strategy", strategy, "--communicator", communicator]
        layers = ["--layers", 3] if communicator == "ring" else []
        large = ["--layers", 4, "--dim", 128] if beside else []   # saves take longer than a step
        self.command = [*program, *TINY, *layers, *large, "--text", self.text, "--runs", self.folder / "runs", "--workers", 2,
                        "--steps", steps, "--checkpoint-every", self.every, "--eval-every", 30, "--max-failures", 10]

    def run(self, name, *more):
        return Run([*self.command, "--run", name, *more], TMPDIR=self.scratch)

    def curve(self, name):
        path = self.folder / "runs" / name / "metrics.csv"
        return path.read_bytes() if path.exists() else b""

    def rows(self, name):
        return self.curve(name).count(b"\n")

    def files(self, name):
        """What there is, but for event files: every start writes its own."""
        here = self.folder / "runs" / name
        return sorted(str(p.relative_to(here)) for p in here.rglob("*") if not p.name.startswith("events."))

    def tensors(self, name):
        shards = sorted((self.folder / "runs" / name / "checkpoints" / f"step-{self.steps:08}").glob("*.safetensors"))
        return [p.read_bytes() for p in shards]

    def quiet(self):
        with self.run("quiet") as run:
            run.wait_until(lambda: self.rows("quiet") > 1, "the first step")
            self.first_step = time.monotonic() - run.begin
            run.check(run.wait() == 0, "the undisturbed run failed")
            self.check_left(run)
        assert self.rows("quiet") > self.steps / 2, "the undisturbed run wrote no curve"
        assert self.tensors("quiet"), "the undisturbed run saved nothing"

    def check_left(self, run):
        run.check_nothing_left()
        run.check(not list(self.scratch.iterdir()), f"left behind: {list(self.scratch.iterdir())}")

    def check_same(self, run, name, after=""):
        run.check(self.curve(name) == self.curve("quiet"), "another loss curve" + after)
        run.check(self.tensors(name) == self.tensors("quiet"), "other weights or states" + after)
        run.check(self.files(name) == self.files("quiet"), f"other files{after}: {self.files(name)}")
        self.check_left(run)


def kill_cases(job, kills, seed, everything):
    draw = random.Random(seed)
    restarts = []

    def kill_a_worker(number):
        """One in four while the ranks meet; the others anywhere from the first step to behind the last.
        By steps and not by the clock: the next run may be faster or slower than the undisturbed one."""
        victim, name = draw.randrange(2), f"kill-{number}"
        step = 0 if draw.randrange(4) == 0 else draw.randrange(1, job.steps + 1)
        delay = draw.uniform(0.0, job.first_step if step == 0 else 0.05)
        moment = f"{1000 * delay:.0f} ms after " + (f"step {step}" if step else "both were started")
        with job.run(name) as run:
            killed = False
            run.wait_until(lambda: job.rows(name) > step if step else len(run.children()) == 2, moment)
            begin = time.monotonic()
            while time.monotonic() - begin < delay and run.process.poll() is None:
                time.sleep(0.001)
            workers = run.children()
            if len(workers) > victim and run.process.poll() is None:
                try:
                    os.kill(workers[victim], signal.SIGKILL)
                    killed = True
                except ProcessLookupError:
                    pass  # it ended in this very moment
            code = run.wait()
            run.check(code == 0, f"exit code {code} after a kill {moment}")
            job.check_same(run, name, f" after a kill {moment}")
            again = "restart 1 of" in run.stderr
            restarts.append(again)
            print(f"        kill {number}: worker {victim}, {moment}: "
                  f"{'killed' if killed else 'not there'}, {'restarted' if again else 'no restart needed'}", flush=True)

    def kills_hit():
        print(f"        {job.label}: {sum(restarts)} restarts in {len(restarts)} runs", flush=True)
        assert kills < 10 or sum(restarts) >= kills / 2, "most kills changed nothing: this tests little"

    def kill_in_the_middle():
        with job.run("middle") as run:
            run.wait_until(lambda: job.rows("middle") > job.steps / 3, "a third of the steps")
            os.kill(run.children()[-1], signal.SIGKILL)
            run.check(run.wait() == 0, "the run did not recover")
            run.check("restart 1 of" in run.stderr, "no word of a restart")
            run.check("signal 9" in run.stderr, "the reason is not named")
            job.check_same(run, "middle")

    def stop_a_worker():
        with job.run("stopped") as run:
            run.wait_until(lambda: job.rows("stopped") > job.steps / 3, "a third of the steps")
            victim = run.children()[0]
            os.kill(victim, signal.SIGSTOP)
            run.check(run.wait() == 0, "the run did not recover from a worker that hangs")
            told = [line for line in run.stderr.splitlines() if "restart 1 of" in line]
            run.check(told and f"pid {victim} " in told[0] and "silent" in told[0], "it is not told who hangs")
            job.check_same(run, "stopped")

    def kill_the_supervisor():
        with job.run("orphans") as run:
            run.wait_until(lambda: job.rows("orphans") > 20, "20 steps")
            run.check(len(run.children()) == 2, f"not two workers: {run.children()}")
            run.process.kill()
            begin = time.monotonic()
            run.process.wait()
            while run.marked.processes() and time.monotonic() - begin < 10:
                time.sleep(0.001)
            took = time.monotonic() - begin
            run.check(took < 1.0, f"the workers outlived their supervisor by {took:.3f} s")
            job.check_left(run)
            print(f"        workers gone {took:.3f} s after their supervisor", flush=True)

    def interrupt(number, code):
        def case():
            name = f"interrupt-{code}"
            with job.run(name) as run:
                run.wait_until(lambda: job.rows(name) > 20, "20 steps")
                run.process.send_signal(number)
                got = run.wait()
                run.check(got == code, f"exit code {got}")
                job.check_left(run)
                run.check(job.rows(name) < job.steps, "it did not stop early")
            with job.run(name, "--resume") as run:
                run.check(run.wait() == 0, "resume failed")
                run.check(job.curve(name) == job.curve("quiet"), "another loss curve after stop and resume")
                job.check_left(run)
        return case

    cases = [("a run that nobody disturbs", job.quiet)]
    if everything:
        cases.append(("a worker killed in the middle of training", kill_in_the_middle))
    for i in range(kills):
        cases.append((f"a worker killed at a random moment, {i + 1} of {kills}", lambda i=i: kill_a_worker(i + 1)))
    cases.append(("the kills hit running workers", kills_hit))
    if everything:
        cases += [("a worker that hangs", stop_a_worker),
                  ("a supervisor killed: its workers leave within a second", kill_the_supervisor),
                  ("Ctrl-C stops in order and resume goes on", interrupt(signal.SIGINT, 130)),
                  ("SIGTERM stops in order and resume goes on", interrupt(signal.SIGTERM, 143))]
    return [(f"{job.label}: {name}", case) for name, case in cases]


def save_cases(job, kills, seed):
    """The undisturbed run blocks while it saves; the others write saves beside training, and something happens to
    them while one is in flight: its folder has no name yet."""
    draw = random.Random(seed)
    restarts, hits = [], []

    def in_flight(name):
        here = job.folder / "runs" / name / "checkpoints"
        return [p.name for p in here.glob("step-*.part-*")] if here.is_dir() else []

    def await_save(run, name, step):
        """Until a save behind that step is in flight."""
        begin = time.monotonic()
        while time.monotonic() - begin < 120 and run.process.poll() is None:
            found = [p for p in in_flight(name) if int(p[5:13]) >= step]
            if found:
                return found[0]
            time.sleep(0.0003)
        return None

    def undisturbed():
        with job.run("beside", "--checkpoint-async") as run:
            run.check(run.wait() == 0, "the run failed")
            run.check("saves are written beside training" in run.stderr + run.stdout, "it is not told how saves are made")
            job.check_same(run, "beside")

    def kill_one(number):
        name, victim = f"save-{number}", draw.randrange(2)
        step, delay = draw.randrange(1, job.steps - job.every), draw.uniform(0.0, 0.02)
        with job.run(name, "--checkpoint-async") as run:
            found = await_save(run, name, step)
            time.sleep(delay)
            still = found in in_flight(name)
            workers = run.children()
            if len(workers) > victim and run.process.poll() is None:
                try:
                    os.kill(workers[victim], signal.SIGKILL)
                    hits.append(still)
                except ProcessLookupError:
                    pass
            code = run.wait()
            run.check(code == 0, f"exit code {code} after a kill during {found}")
            job.check_same(run, name, f" after a kill during {found}")
            restarts.append("restart 1 of" in run.stderr)
            print(f"        kill {number}: worker {victim}, {1000 * delay:.0f} ms behind the beginning of {found}, "
                  f"{'in flight' if still else 'just done'}, {'restarted' if restarts[-1] else 'no restart needed'}", flush=True)

    def kills_hit():
        print(f"        {job.label}: {sum(hits)} of {len(hits)} kills hit a save in flight, {sum(restarts)} restarts", flush=True)
        assert kills < 10 or sum(hits) >= kills / 3, "most saves were over: this tests little"

    def kill_the_supervisor():
        with job.run("orphans", "--checkpoint-async") as run:
            await_save(run, "orphans", job.steps // 3)
            run.process.kill()
            run.process.wait()
            job.check_left(run)
        with job.run("orphans", "--checkpoint-async", "--resume") as run:
            run.check(run.wait() == 0, "resume failed")
            job.check_same(run, "orphans")

    def stop(signals):
        def case():
            name = f"stop-{signals}"
            with job.run(name, "--checkpoint-async") as run:
                found = await_save(run, name, job.steps // 3)
                for _ in range(signals):
                    run.process.send_signal(signal.SIGTERM)
                    time.sleep(0.05)
                code = run.wait()
                run.check(code == 143, f"exit code {code} after {signals} times SIGTERM")
                run.check_nothing_left()
                if signals == 1:
                    run.check(not in_flight(name), f"unfinished: {in_flight(name)}")
                    here = job.folder / "runs" / name / "checkpoints" / found.split(".")[0]
                    run.check(here.is_dir(), f"the save that was in flight is not there: {found}")
                run.check(job.rows(name) < job.steps, "it did not stop early")
            with job.run(name, "--checkpoint-async", "--resume") as run:
                run.check(run.wait() == 0, "resume failed")
                run.check(job.curve(name) == job.curve("quiet"), "another loss curve after stop and resume")
                run.check(job.tensors(name) == job.tensors("quiet"), "other weights or states after stop and resume")
                job.check_left(run)
        return case

    cases = [("a run whose saves block", job.quiet), ("the same beside training", undisturbed)]
    for i in range(kills):
        cases.append((f"a worker killed during a save, {i + 1} of {kills}", lambda i=i: kill_one(i + 1)))
    cases += [("the kills hit saves", kills_hit), ("a supervisor killed during a save", kill_the_supervisor),
              ("SIGTERM during a save: it is there, and resume goes on", stop(1)),
              ("SIGTERM twice during a save", stop(2))]
    return [(f"{job.label}: {name}", case) for name, case in cases]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategy", choices=["ddp", "zero1", "zero2", "fsdp", "hybrid"],
                        help="this one alone (default: ddp, and a few kills under fsdp)")
    parser.add_argument("--communicator", choices=["automatic", "shm", "ring"], default="automatic")
    parser.add_argument("--during-save", type=int, default=None, metavar="N",
                        help="only runs that save beside training, with N kills while a save is in flight")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.during_save is not None:
            run_cases(save_cases(Job(folder, options.strategy or "ddp", options.communicator, steps=60, beside=True),
                                 options.during_save, options.seed))
        cases = kill_cases(Job(folder, options.strategy or "ddp", options.communicator), options.kills, options.seed, True)
        if not options.strategy:
            cases += kill_cases(Job(folder, "fsdp", "ring", steps=60), 2, options.seed, False)
            cases += save_cases(Job(folder, "fsdp", "automatic", steps=60, beside=True), 2, options.seed)
        run_cases(cases)


if __name__ == "__main__":
    main()

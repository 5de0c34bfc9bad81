#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disturbs the training of bench/elastic.cpp and says how long nothing went on.

elastic_events.py PROGRAM [--repeats N] [--only CASE]    cases: kill, stop, join, leave, baselines

Two workers, one of them killed with -9 (rank 0, too), stopped, or told to leave; each time another one joins. With SKEIN_PYTHON
the same kills happen to torchrun and torchft before that (bench/elastic_torchrun.py).
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from elastic_lib import Job, Steps, Stuck, event, figure, percentile  # noqa: E402

GAP, STOPPED, SMALL_JOIN, LARGE_JOIN, LEAVE = 0.3, 1.5, 0.1, 1.0, 0.2     # the bars, in seconds besides a step


def training(program, extra_mb=0, workers="1:2"):
    return lambda folder, log: Job([program, "--train", log, workers, folder, extra_mb], folder)


def stall_of_join(steps, pid, since):
    """The longest time between two new steps while `pid` came in: from one second before its first step to that step and one more."""
    first = next(at for what, at, _, _, p in steps.lines if what == "done" and p == pid)
    done = sorted(at for at in steps.first.values() if since <= at)
    return max(b - a for a, b in zip(done, done[1:]) if b > first - 1.0 and a <= first + 0.5)


def newcomer(steps, known):
    return next((pid for what, _, _, _, pid in steps.lines if what == "done" and pid not in known), None)


def disturbed(begin_job, act, repeats):
    """As elastic_lib.events(), with the stall of the join that follows each: (gap, redone, step, stall). None follows a leave: the
    job has one worker less then, and another job begins."""
    draw, found, stuck = random.Random(1), [], 0
    while len(found) < repeats and stuck <= repeats:
        with tempfile.TemporaryDirectory(prefix="skein-elastic-") as folder:
            steps = Steps(f"{folder}/steps")
            job = begin_job(folder, steps.path)
            try:
                while len(found) < repeats:
                    gap, redone, step = event(job, steps, act, draw)
                    if act.how == signal.SIGTERM:
                        found.append((gap, redone, step, 0.0))
                        break
                    # All that were there before the event; the newcomer may have joined already.
                    known = {pid for what, at, _, _, pid in steps.lines if at < act.at}
                    steps.wait_until(job, lambda: newcomer(steps, known) is not None, "step of the one that joins")
                    joined = newcomer(steps, known)
                    beyond = steps.last + 10
                    steps.wait_until(job, lambda: steps.last >= beyond, "steps behind the join")
                    found.append((gap, redone, step, stall_of_join(steps, joined, act.at + gap - step)))
            except Stuck as why:
                stuck += 1
                print(f"   stuck: {why}", file=sys.stderr, flush=True)
            finally:
                job.end()
    return found, stuck


class Signal:
    """Sends a signal to the rank and remembers when; how long the process was there after that."""

    def __init__(self, rank, how):
        self.rank, self.how, self.at, self.ends = rank, how, 0.0, []

    def __call__(self, steps):
        pid = steps.pid_of(self.rank)
        self.at = time.monotonic()
        os.kill(pid, self.how)
        if self.how == signal.SIGTERM:
            while os.path.exists(f"/proc/{pid}/mem") and time.monotonic() < self.at + 20:
                time.sleep(0.001)
            self.ends.append(time.monotonic() - self.at)


def baselines(repeats):
    """Figures of torchrun and torchft by their name; none without SKEIN_PYTHON."""
    python = os.environ.get("SKEIN_PYTHON")
    if not python:
        print("   SKEIN_PYTHON is not set: no torchrun, no torchft", file=sys.stderr)
        return {}
    script = pathlib.Path(__file__).with_name("elastic_torchrun.py")
    said = subprocess.run([python, script, "--repeats", str(repeats)], stdout=subprocess.PIPE, text=True, check=False).stdout
    sys.stdout.write(said)
    return {line["name"]: line["value"] for line in map(json.loads, said.splitlines())}


def of_torchrun(known, name):
    """The better of its two settings."""
    return min((known[key] for how in ("default", "tuned") if (key := f"elastic.torchrun_{how}.{name}") in known), default=None)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--repeats", type=int, default=10)
    arguments.add_argument("--only", choices=["kill", "stop", "join", "leave", "baselines"])
    asked = arguments.parse_args()
    ok = True
    known = baselines(asked.repeats) if asked.only in (None, "kill", "baselines") else {}
    wanted = lambda case: asked.only in (None, case)    # noqa: E731

    def measure(name, act, extra_mb=0, repeats=asked.repeats):
        print(f"-- {name}", file=sys.stderr, flush=True)
        found, stuck = disturbed(training(asked.program, extra_mb), act, repeats)
        if not found:
            sys.exit(f"{name}: stuck each time")
        gaps, redone, steps, stalls = zip(*found)
        return gaps, redone, percentile(steps, 0.5), stalls, {"repeats": len(found), "stuck": stuck}

    stalls = []
    if wanted("kill"):
        for rank, name in ((1, "worker"), (0, "rank_0")):
            gaps, redone, step, joined, more = measure(f"kill -9 of {name}", Signal(rank, signal.SIGKILL))
            stalls += joined
            figure(f"elastic.kill_{name}_gap_p50", percentile(gaps, 0.5), "s", **more)
            ok &= figure(f"elastic.kill_{name}_gap_p95", percentile(gaps, 0.95), "s", bar=GAP + step, step=step, **more)
            there = of_torchrun(known, f"kill_{name}_gap_p95")
            if there:
                ok &= figure(f"elastic.kill_{name}_beside_torchrun", percentile(gaps, 0.95), "s", "torchrun", there, 0.1, **more)
            ok &= figure(f"elastic.kill_{name}_steps_redone", max(redone), "steps", bar=1, **more)
    if wanted("stop"):
        gaps, redone, step, _, more = measure("SIGSTOP of a worker", Signal(1, signal.SIGSTOP))
        ok &= figure("elastic.stop_gap_p95", percentile(gaps, 0.95), "s", bar=STOPPED, step=step, **more)
    if wanted("join"):
        if not stalls:
            _, _, _, stalls, _ = measure("join, 5 MB of state", Signal(1, signal.SIGKILL))
        ok &= figure("elastic.join_5_mb_stall_p50", percentile(stalls, 0.5), "s", bar=SMALL_JOIN, most=max(stalls))
        _, _, step, large, more = measure("join, 500 MB of state", Signal(1, signal.SIGKILL), 495, max(3, asked.repeats // 3))
        ok &= figure("elastic.join_500_mb_stall_p50", percentile(large, 0.5), "s", bar=LARGE_JOIN, most=max(large), step=step, **more)
    if wanted("leave"):
        act = Signal(1, signal.SIGTERM)
        gaps, redone, step, _, more = measure("SIGTERM of a worker", act)
        ok &= figure("elastic.leave_gone_p95", percentile(act.ends, 0.95), "s", bar=LEAVE + step, step=step, **more)
        ok &= figure("elastic.leave_steps_redone", max(redone), "steps", bar=0, **more)
        figure("elastic.leave_gap_p95", percentile(gaps, 0.95), "s", **more)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

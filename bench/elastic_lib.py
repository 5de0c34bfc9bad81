# SPDX-License-Identifier: Apache-2.0
"""What bench/elastic.cpp and its baselines share: the log of steps, and what is read from it.

A rank appends "begin|done NANOSECONDS STEP RANK PID" to the log. A step is *new* when no rank has done it before. The gap of an
event is the longest time between two new steps around it; steps redone are those that were begun again.
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

# A job's processes have sessions of their own: they are ended on the way out.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

PATIENCE = 60.0     # seconds without what is waited for


class Stuck(Exception):
    """A job ended, or did not go on."""


def percentile(values, fraction):
    """As bench/bench.hpp: the value at that place of the sorted ones."""
    values = sorted(values)
    return values[min(int(fraction * len(values)), len(values) - 1)]


def figure(name, value, unit, baseline=None, baseline_value=None, bar=None, **more):
    """One JSON line as bench/bench.hpp prints them; true when there is no bar or it is met."""
    ratio = None if not baseline_value else value / baseline_value
    ok = None if bar is None else (value if ratio is None else ratio) <= bar
    print(json.dumps({"name": name, "value": round(value, 6), "unit": unit, "baseline": baseline, "baseline_value": baseline_value,
                      "ratio": ratio, "bar": bar, "ok": ok, **more}, separators=(",", ":")), flush=True)
    return ok is not False


class Steps:
    """The log of one job."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.path.touch()
        self.file = open(self.path, encoding="ascii")
        self.rest = ""
        self.lines = []     # (begin or done, seconds, step, rank, pid)
        self.first = {}     # step: when any rank had done it first
        self.last = 0       # the largest step done

    def read(self):
        self.rest += self.file.read()
        whole, _, self.rest = self.rest.rpartition("\n")
        for line in whole.splitlines():
            what, at, step, rank, pid = line.split()
            self.lines.append((what, int(at) * 1e-9, int(step), int(rank), int(pid)))
            if what == "done":
                self.first.setdefault(int(step), int(at) * 1e-9)
                self.last = max(self.last, int(step))

    def pid_of(self, rank):
        """Who was that rank last."""
        return next(pid for _, _, _, r, pid in reversed(self.lines) if r == rank)

    def has_together(self, ranks):
        """The newest steps were done by so many processes that are there."""
        pids = {pid for what, _, step, _, pid in self.lines[-8 * ranks:] if what == "done" and step > self.last - 3}
        return len([pid for pid in pids if os.path.exists(f"/proc/{pid}/mem")]) == ranks

    def wait_until(self, job, condition, what):
        end = time.monotonic() + PATIENCE
        while True:
            self.read()
            if condition():
                return
            if job.poll() is not None:
                raise Stuck(f"the job ended with {job.returncode} before {what}; it said:\n{self.said()}")
            if time.monotonic() > end:
                raise Stuck(f"no {what} in {PATIENCE} s; the job said:\n{self.said()}")
            time.sleep(0.001)

    def said(self):
        output = self.path.with_name("output")
        return output.read_text(errors="replace")[-2000:] if output.exists() else ""

    def step_seconds(self, after=0.0):
        """Median time between two new steps."""
        done = [self.first[s] for s in sorted(self.first) if self.first[s] > after]
        return percentile([b - a for a, b in zip(done, done[1:])], 0.5)

    def gap(self, begin):
        """The longest time between two new steps, of which the later one is behind `begin`."""
        done = sorted(self.first.values())
        return max(b - a for a, b in zip(done, done[1:]) if b > begin)

    def redone(self, begin):
        """The most steps that one rank began behind `begin` although somebody had done them, or it had begun them before."""
        done, begun, again = 0, set(), {}
        for what, at, step, _, pid in sorted(self.lines, key=lambda line: line[1]):
            if what == "done":
                done = max(done, step)
            elif at > begin and (step <= done or (pid, step) in begun):
                again[pid] = again.get(pid, 0) + 1
            if what == "begin":
                begun.add((pid, step))
        return max(again.values(), default=0)


def event(job, steps, act, draw, ranks=2, settle=30):
    """Does act(steps) between steps of its own choice; the gap, the steps redone, the seconds of a step."""
    steps.wait_until(job, lambda: steps.has_together(ranks), f"step of {ranks} ranks together")
    start_at = steps.last + draw.randint(settle, 2 * settle)
    steps.wait_until(job, lambda: steps.last >= start_at, f"step {start_at}")
    begin = time.monotonic()
    act(steps)
    steps.read()
    before = steps.last
    steps.wait_until(job, lambda: steps.last >= before + settle, f"step {before + settle}")
    found = steps.gap(begin), steps.redone(begin), steps.step_seconds(begin - 2)
    print(f"   behind step {before}: gap {found[0]:.3f} s, {found[1]} steps redone", file=sys.stderr, flush=True)
    return found


def events(begin_job, act, repeats):
    """So many events in one job, or in more where it gets stuck; the events, how often it was stuck, seconds to the first steps."""
    draw, found, stuck, started = random.Random(1), [], 0, []
    while len(found) < repeats and stuck <= repeats:
        with tempfile.TemporaryDirectory(prefix="skein-elastic-") as folder:
            steps = Steps(f"{folder}/steps")
            begin = time.monotonic()
            job = begin_job(folder, steps.path)
            try:
                steps.wait_until(job, lambda: steps.last > 0, "first step")
                started.append(min(steps.first.values()) - begin)
                while len(found) < repeats:
                    found.append(event(job, steps, act, draw))
            except Stuck as why:
                stuck += 1
                print(f"   stuck: {why}", file=sys.stderr, flush=True)
            finally:
                job.end()
    return found, stuck, started


def kill(rank, how=signal.SIGKILL):
    return lambda steps: os.kill(steps.pid_of(rank), how)


class Job:
    """A process and all that it starts, wherever they move; its output is in the folder."""

    def __init__(self, command, folder, **env):
        self.mark = f"SKEIN_BENCH_MARK={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        with open(pathlib.Path(folder, "output"), "ab") as out:
            self.process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", name: value, **env})

    def poll(self):
        return self.process.poll()

    @property
    def returncode(self):
        return self.process.returncode

    def processes(self):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass    # it ended meanwhile
        return found

    def end(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

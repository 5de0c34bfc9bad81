#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users who submit, follow and stop jobs while the head is killed again and again, and a node now and then.

    head_chaos_test.py [--seconds N] [--seed N] [NAME]

Five seconds after all nodes are back no job may be starting or running that no node runs, and no process may run that
belongs to no job; who follows sees each line once, or is told how many are left out; no attempt of a job runs twice.
"""
# label: runtime
import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import SECONDS  # noqa: E402
from jobs_test import Jobs  # noqa: E402
from program import environment, run_cases  # noqa: E402

asking = argparse.ArgumentParser()
asking.add_argument("--seconds", type=float, default=12)
asking.add_argument("--seed", type=int, default=1)
asking.add_argument("name", nargs="?")
asked = asking.parse_args()

REMEMBERED = 1000    # ended jobs that a head knows
OPEN = ("PENDING", "STARTING", "RUNNING", "RETRYING")
LEFT_OUT = re.compile(r"(\d+) lines? (?:is|are|was|were) left out|line \d+ is left out")


class User(threading.Thread):
    """Submits jobs, follows them, stops one now and then. Notes what is wrong; asserts nothing."""

    def __init__(self, cluster, number, until):
        super().__init__()
        self.cluster, self.until = cluster, until
        self.random = random.Random(f"{asked.seed}.{number}")
        self.number, self.tried, self.kept, self.wrong = number, 0, [], []

    def tool(self, *words):
        return subprocess.run([self.cluster.skein, "job", *words, "--address", self.cluster.address], cwd=self.cluster.cwd, capture_output=True, text=True,
                              env=environment(**self.cluster.env), timeout=SECONDS * 4, check=False, stdin=subprocess.DEVNULL)

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.one(f"u{self.number}.{self.tried}")
                self.tried += 1
        except Exception as why:    # told by the test's own thread
            self.wrong.append(f"user {self.number}: {why!r}")

    def one(self, name):
        lines = self.random.choice((1, 5, 50))
        note = self.cluster.folder / "notes" / name
        script = f"echo $SKEIN_JOB_ATTEMPT >> {note}; for i in $(seq {lines}); do echo line $i; sleep 0.02; done"
        more = ["--retries", "1"] if self.random.random() < 0.3 else []
        command = ["submit", "--id", name, *more]
        end = ["--", "sh", "-c", script]
        if self.random.random() < 0.4:
            done = subprocess.run([self.cluster.skein, "job", *command, "--no-wait", "--address", self.cluster.address, *end], cwd=self.cluster.cwd, capture_output=True,
                                  text=True, env=environment(**self.cluster.env), timeout=SECONDS * 4, check=False, stdin=subprocess.DEVNULL)
            if done.returncode == 0:
                self.kept.append(name)
                if self.random.random() < 0.3:
                    self.tool("stop", name)
            return
        done = subprocess.run([self.cluster.skein, "job", *command, "--address", self.cluster.address, *end], cwd=self.cluster.cwd, capture_output=True, text=True,
                              env=environment(**self.cluster.env), timeout=SECONDS * 4, check=False, stdin=subprocess.DEVNULL)
        if done.returncode in (0, 1):
            self.kept.append(name)
        if done.returncode != 0:
            return
        seen = [int(line.split()[1]) for line in done.stdout.splitlines() if re.fullmatch(r"line \d+", line)]
        missing = lines - len(set(seen))
        if len(seen) != len(set(seen)) and not more:
            self.wrong.append(f"{name}: lines twice: {done.stdout}\n{done.stderr}")
        if missing > 0 and not LEFT_OUT.search(done.stderr):
            self.wrong.append(f"{name}: {missing} of {lines} lines are missing, and it is not said:\n{done.stdout}\n{done.stderr}")


def heads():
    """Kills the head every one or two seconds, and a node now and then."""
    draw = random.Random(asked.seed)
    killed = {"heads": 0, "nodes": 0}
    with Jobs(state=True) as c:
        (c.folder / "notes").mkdir()
        until = time.monotonic() + asked.seconds
        users = [User(c, number, until) for number in range(3)]
        for user in users:
            user.start()
        while time.monotonic() < until:
            time.sleep(draw.uniform(0.5, 2.0))    # the faults' own rhythm, no wait for something
            if draw.random() < 0.1:
                name = draw.choice(("n1", "n2"))
                os.kill(c.nodes[name].process.pid, signal.SIGKILL)
                c.nodes[name].wait(SECONDS)
                c.join(name, "--resources", "cpu=4")
                killed["nodes"] += 1
                continue
            os.kill(c.head.process.pid, signal.SIGKILL)
            c.head.wait(SECONDS)
            c.start_head(c.address)
            killed["heads"] += 1
        c.wait_until(lambda: sum(not n.get("missing") for n in c.status()["nodes"]) == 2, "both nodes")
        back = time.monotonic()
        for user in users:
            user.join()
        kept = [name for user in users for name in user.kept]
        c.wait_until(lambda: not [j for j in jobs(c) if j["state"] in OPEN] or time.monotonic() - back > 5, "quiet jobs, or five seconds")
        late = [j for j in jobs(c) if j["state"] in OPEN and j["state"] != "RUNNING"]
        late += [j for j in jobs(c) if j["state"] == "RUNNING" and not runs(c, j["id"])]
        wrong = [text for user in users for text in user.wrong] + [f"in a wrong state: {j}" for j in late]
        known = {j["id"]: j for j in jobs(c)}
        if len(known) < REMEMBERED:
            wrong += [f"{name} was taken, and is not known" for name in kept if name not in known]
        for name in known:
            note = c.folder / "notes" / name
            attempts = note.read_text().split() if note.exists() else []
            if len(attempts) != len(set(attempts)):
                wrong.append(f"{name}: attempts {attempts}, one of them twice: {known[name]}")
        tried = sum(user.tried for user in users)
        print(f"        {killed['heads']} heads and {killed['nodes']} nodes killed, {tried} jobs tried, {len(kept)} taken, {len(known)} known")
        c.head.check(not wrong, "\n".join(wrong))
        c.head.check(killed["heads"] > 2 and kept, "nothing was tried")
        c.stop()


def jobs(c):
    out, _ = c.job("list", "--json")
    said = json.loads(out)
    return said["jobs"] if isinstance(said, dict) else said


def runs(c, name):
    """Whether a process of this job lives."""
    for proc in pathlib.Path("/proc").iterdir():
        try:
            if proc.name.isdigit() and f"SKEIN_JOB={name}\0".encode() in (proc / "environ").read_bytes():
                return True
        except OSError:
            pass
    return False


if __name__ == "__main__":
    run_cases([("heads", heads)], asked.name)

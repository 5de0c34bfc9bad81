#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moves.py [--scripts N] [--first S] [--moves N] [--steps N] [--keep]: what scripts/moves runs when everything is built.

The moves of a script are drawn from its number before anything starts; which process one hits depends on what runs then.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "programs"))
from chaos import Hosts, say  # noqa: E402
from program import Run, find_program  # noqa: E402

CPUS = {"a": 3, "b": 2, "c": 2}
SECONDS = 240.0
KINDS = {"drain": 4, "undo": 3, "scale": 2, "cut": 2, "worker killed": 4, "agent killed": 1, "entry killed": 1}
PROGRAM = ("--logical-shards", 8, "--checkpoint-every", 25, "--plain", "--samples", 1600, "--test", 200)


class Failed(Exception):
    pass


def read(pid, what):
    """A file of a process; empty: it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def is_worker(pid):
    return b"worker" in read(pid, "comm")


def is_train(pid):
    return read(pid, "cmdline").startswith(b"./train")


def network_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class Moves:
    """A head and three nodes that see no folder of each other, and one elastic training as a job."""

    def __init__(self, number, arguments):
        self.rng = random.Random(number)
        self.arguments = arguments
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="skein-moves-"))
        self.hosts = Hosts()
        self.skein = find_program("skein")
        self.nodes, self.runs, self.draining, self.told = {}, [], set(), []
        self.to_row, self.to_empty = [], []
        for name in ("head", *CPUS):
            for below in ("home", "config", "tmp", "work"):
                (self.folder / name / below).mkdir(parents=True)
        self.sent = self.folder / "head/work/sent"
        self.sent.mkdir()
        shutil.copy(find_program("300_elastic_mnist"), self.sent / "train")
        self.token = self.folder / "token"
        self.token.write_text("".join(f"{self.rng.randrange(256):02x}" for _ in range(32)) + "\n")
        self.token.chmod(0o600)

    # ---- processes ----

    def start(self, name, *arguments):
        at = self.folder / name
        run = Run([*self.hosts.at(0 if name == "head" else 1 + list(CPUS).index(name)), *arguments], cwd=at / "work", HOME=at / "home",
                  XDG_CONFIG_HOME=at / "config", TMPDIR=at / "tmp", SKEIN_TOKEN_FILE=self.token)
        self.runs.append(run)
        return run

    def tool(self, *arguments, code=0):
        run = self.start("head", self.skein, *arguments)
        got = run.wait(SECONDS)
        if code is not None and got != code:
            run.fail(f"it ended with {got}")
        self.runs.remove(run)
        out, err = run.stdout, run.stderr
        run.__exit__()
        return out, err

    def start_head(self):
        shared = ["--runs", self.folder / "runs"] if self.arguments.shared else []
        self.head = self.start("head", self.skein, "head", "--listen", f"{self.hosts.head}:0", "--state", self.folder / "state", "--storage", self.folder / "files", *shared)
        self.address = self.head.wait_until(lambda: re.search(r"skein join (\S+)\n", self.head.stdout), "join line", SECONDS).group(1)

    def join(self, name):
        self.nodes[name] = self.start(name, self.skein, "join", self.address, "--name", name, "--resources", f"cpu={CPUS[name]}")

    def table(self):
        """The run's table, wherever its first rank has written last; the longest is the newest."""
        found = list(self.folder.glob("*/home/.cache/skein/node-*/jobs/*/runs/elastic/metrics.csv")) + list(self.folder.glob("runs/*/elastic/metrics.csv"))
        return max(found, key=lambda p: (p.stat().st_mtime_ns, p.stat().st_size), default=None)

    def rows(self):
        try:
            table = self.table()
            return table.read_bytes().count(b"\n") if table else 0
        except FileNotFoundError:    # a folder that goes
            return 0

    def processes(self, name):
        """By its network: workers get variables of the process that asks for them."""
        there = network_of(self.nodes[name].process.pid)
        every = {pid for run in self.runs for pid in run.marked.processes()}
        return [pid for pid in sorted(every) if there and network_of(pid) == there and pid != self.nodes[name].process.pid]

    def workers(self, name):
        return [pid for pid in self.processes(name) if is_worker(pid)]

    def drains(self, name):
        return self.head.stderr.count(f"node drains node={name}")

    def until_rows(self, more):
        before = self.rows()
        self.job.wait_until(lambda: self.rows() >= before + more or self.job.process.poll() is not None, f"{more} more rows", SECONDS)

    # ---- moves ----

    def until_changed(self):
        """Seconds until the table changes."""
        begin, table = time.monotonic(), self.table()
        before = table.stat().st_mtime_ns if table else 0

        def has_changed():
            now = self.table()
            return self.job.process.poll() is not None or (now is not None and now.stat().st_mtime_ns > before)
        self.job.wait_until(has_changed, "another row", SECONDS)
        return time.monotonic() - begin

    def strike(self, kind):
        name = self.rng.choice(list(CPUS))
        if kind == "drain":
            if len(self.draining) == len(CPUS) - 1:
                return False
            self.draining.add(name)
            begin, before = time.monotonic(), self.drains(name)
            # It waits until the node is empty, of the job's own process as well.
            self.start("head", self.skein, "drain", name, "--within", "30s", "--address", self.address)
            self.job.wait_until(lambda: self.job.process.poll() is not None or (self.drains(name) > before and not self.workers(name)),
                                f"a node {name} without workers", 60.0)
            if self.job.process.poll() is None:
                self.to_empty.append(time.monotonic() - begin)
        elif kind == "undo":
            if not self.draining:
                return False
            name = self.draining.pop()
            self.tool("drain", name, "--undo", "--address", self.address)
        elif kind == "scale":
            self.tool("scale", "moves", str(self.rng.randint(1, 4)), "--address", self.address, code=None)    # it may have ended
        elif kind == "cut":
            at = 1 + list(CPUS).index(name)
            self.hosts.plug(at, "down")
            time.sleep(self.rng.uniform(0.3, 3))
            self.hosts.plug(at, "up")
        elif kind == "worker killed":
            there = [pid for node in CPUS for pid in self.workers(node)]
            if not there:
                return False
            os.kill(self.rng.choice(there), signal.SIGKILL)
            self.to_row.append(self.until_changed())
        elif kind == "entry killed":
            there = [pid for node in CPUS for pid in self.processes(node) if not is_worker(pid) and is_train(pid)]
            if not there:
                return False
            os.kill(there[0], signal.SIGKILL)
        else:
            old = self.nodes.pop(name)
            old.process.kill()
            old.wait(SECONDS)
            self.join(name)
        return True

    def play(self, wanted):
        self.start_head()
        for name in CPUS:
            self.join(name)
        for name in CPUS:
            self.nodes[name].wait_until(lambda name=name: "joined" in self.nodes[name].stdout, "word that it has joined", SECONDS)
        self.job = self.start("head", self.skein, "job", "submit", "--address", self.address, "--id", "moves", "--elastic", "1:4", "--retries", "20",
                              "--working-dir", self.sent, "--", "./train", "--resume", "--steps", str(self.arguments.steps), *map(str, PROGRAM))
        self.job.wait_until(lambda: self.rows() > 10, "some rows", SECONDS)
        for _ in range(self.arguments.moves):
            kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
            before = self.rows()
            if self.job.process.poll() is not None:
                self.told.append("(it has ended)")
                break
            did = self.strike(kind)
            self.told.append(f"{kind}{'' if did else ' (nobody)'} at {before}")
            if did:
                self.until_rows(5)
        if self.job.wait(SECONDS) != 0:
            self.job.fail("the job failed")
        if self.arguments.shared:
            table = self.table()
        else:
            self.tool("job", "fetch", "moves", "--address", self.address)
            table = next((self.folder / "head/work/moves").rglob("metrics.csv"), None)
        if table is None:
            raise Failed("no table has come back")
        if table.read_bytes() != wanted:
            (self.folder / "wanted.csv").write_bytes(wanted)
            raise Failed(f"{table} is not that of an undisturbed run ({self.folder}/wanted.csv)")
        self.tool("stop", self.address)
        for run in [self.head, *self.nodes.values()]:
            if run.wait(SECONDS) != 0:
                run.fail("it did not end well")
            run.check_nothing_left()

    def end(self, keep):
        for run in self.runs:
            if keep:
                (self.folder / f"log-{run.process.pid}").write_text(f"{run.arguments}\n--- stdout\n{run.stdout}\n--- stderr\n{run.stderr}")
            run.__exit__()
        self.hosts.remove()
        if not keep:
            shutil.rmtree(self.folder)


def alone(steps):
    """The table of the same training with one worker on this host."""
    with tempfile.TemporaryDirectory(prefix="skein-moves-") as folder:
        begin = time.monotonic()
        subprocess.run([find_program("300_elastic_mnist"), "--workers", "1", "--steps", str(steps), *map(str, PROGRAM), "--runs-dir", f"{folder}/runs"],
                       cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        seconds = time.monotonic() - begin
        return next(pathlib.Path(folder).glob("runs/*/metrics.csv")).read_bytes(), seconds / steps


def at(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scripts", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--shared", action="store_true", help="the nodes see one folder for runs")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    wanted, step = alone(arguments.steps)
    to_row, to_empty, failed = [], [], []
    for number in range(arguments.first, arguments.first + arguments.scripts):
        moves, begin, why = Moves(number, arguments), time.monotonic(), ""
        try:
            if not moves.hosts.has_own:
                say("skipped: network namespaces need root and the program ip (package iproute2)")
                return 77
            moves.play(wanted)
        except (AssertionError, Failed) as error:
            why = str(error)
            failed.append(number)
        finally:
            moves.end(bool(why) or arguments.keep)
        to_row += moves.to_row
        to_empty += moves.to_empty
        say(f"{'FAILED' if why else 'ok    '} script {number} in {time.monotonic() - begin:.0f} s: {', '.join(moves.told)}")
        if why:
            say(f"{why}\nlogs: {moves.folder}")
    say(f"  from a kill to the next row: median {statistics.median(to_row or [0]):.2f} s, p95 {at(to_row, 0.95):.2f} s of {len(to_row)}; "
        f"from a drain to a node without workers: median {statistics.median(to_empty or [0]):.2f} s, p95 {at(to_empty, 0.95):.2f} s of {len(to_empty)}; a step alone: {step:.3f} s")
    say(json.dumps({"moves": {"scripts": arguments.scripts, "first": arguments.first, "failed": failed, "to_row": [round(x, 3) for x in to_row],
                              "to_empty": [round(x, 3) for x in to_empty], "step": round(step, 4), "shared": arguments.shared}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings on several hosts over a real etcd, while workers, hosts, links and etcd itself are lost: each has the rows of an undisturbed one.

    etcd_training_test.py [--seeds N] [--first S] [--events N] [CASE]     by hand: --seeds 20 --events 8

As root two of the hosts are network namespaces, whose cables are pulled as well; without it all of them are this host's, and no cable is.
"""
# label: train
import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "programs"))
from cluster_test import in_three_namespaces, ip  # noqa: E402
from etcd_test import Cluster, Refused, text64  # noqa: E402
from program import Run, find_program, run_cases, skip  # noqa: E402

asking = argparse.ArgumentParser()
asking.add_argument("--seeds", type=int, default=1)
asking.add_argument("--first", type=int, default=1)
asking.add_argument("--events", type=int, default=5)
asking.add_argument("case", nargs="?")
asked = asking.parse_args()

if not shutil.which("etcd"):
    skip("etcd not installed (package etcd-server)")
SKEIN = find_program("skein")
PROGRAM = find_program("skein_elastic")
SECONDS = 120.0
NET = "10.83.0"


def children_of(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            except OSError:
                continue
            if int(parent) == pid and state not in "ZX":
                found.append(int(entry.name))
    return sorted(found)


def signal_all(pids, what):
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass


class Follower:
    """Reads a table as it grows. Rows that were there may go; a step that comes again has the same row."""

    def __init__(self, path):
        self.path, self.seen, self.unlike, self.ended = path, {}, [], threading.Event()
        self.thread = threading.Thread(target=self.follow)
        self.thread.start()

    def look(self):
        try:
            text = self.path.read_text()
        except OSError:
            return
        for line in text[:text.rfind("\n") + 1].splitlines()[1:]:
            step, _, row = line.partition(",")
            if self.seen.setdefault(step, row) != row:
                self.unlike.append((step, self.seen[step], row))

    def follow(self):
        while not self.ended.wait(0.05):
            self.look()

    def end(self):
        self.ended.set()
        self.thread.join()
        self.look()
        assert not self.unlike, f"rows that came again as others: {self.unlike[:3]}"


class Job:
    """Supervisors, each with its workers, and the etcd that they share."""

    def __init__(self, folder, etcd, hosts, places, names=None, more=()):
        self.folder, self.etcd, self.names, self.places, self.more = pathlib.Path(folder), etcd, names, places, more
        self.runs, self.asked = self.folder / "runs", self.folder / "asked"
        self.asked.mkdir()
        self.token = self.folder / "token"
        subprocess.run([SKEIN, "token", "--file", self.token], check=True, capture_output=True)
        self.most, self.hosts, self.gone, self.done, self.follower = hosts, {}, [], [], None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.follower is not None:
            self.follower.ended.set()
            self.follower.thread.join()
        for run in (*self.hosts.values(), *self.gone):
            run.__exit__()

    def start(self, i):
        at, local = ([], "127.0.0.1") if self.names is None else (["ip", "netns", "exec", self.names[i + 1]], f"{NET}.{i + 2}")
        endpoints = ",".join(member.client.split("://")[1] for member in self.etcd.members)
        self.hosts[i] = Run([*at, SKEIN, "run", "--nnodes", f"1:{self.most}", "--nproc-per-node", self.places, "--rdzv-backend", "etcd",
                             "--rdzv-endpoint", endpoints, "--rdzv-id", "J", "--max-restarts", 100000, "--local-addr", local, PROGRAM,
                             "--runs", self.runs, "--asked", self.asked, "--logical-shards", 8, "--checkpoint-every", 100, "--pause", 3, *self.more],
                            cwd=self.folder, SKEIN_TOKEN_FILE=self.token)

    # ---- what is seen ----------------------------------------------------------------------------

    @property
    def run_folder(self):
        return self.runs / "elastic"

    def rows(self):
        try:
            return max(0, (self.run_folder / "metrics.csv").read_bytes().count(b"\n") - 1)
        except OSError:
            return 0

    def worlds(self):
        """The generation and the size of each world, as the supervisors say that make them."""
        said = "".join(run.stderr for run in (*self.hosts.values(), *self.gone))
        return sorted((int(n), int(size)) for n, size in re.findall(r"^skein run: world (\d+) of (\d+) ", said, re.M))

    def world(self):
        """How many workers the newest world has."""
        worlds = self.worlds()
        return worlds[-1][1] if worlds else 0

    def first(self):
        """The process id of rank 0, which holds the run's folder."""
        found = re.match(r"pid (\d+)", (self.run_folder / ".lock").read_text())
        return int(found[1]) if found else 0

    def workers(self, i):
        return children_of(self.hosts[i].process.pid)

    def coordinator(self):
        """The host whose supervisor has made the newest world."""
        newest = f"skein run: world {self.worlds()[-1][0]} of "
        return next((i for i, run in self.hosts.items() if newest in run.stderr), min(self.hosts))

    def keys(self):
        try:
            return self.etcd.members[0].call("/v3/kv/range", key=text64("/skein/"), range_end=text64("/skein0"))
        except (OSError, Refused) as why:
            return why

    def fail(self, what):
        told = "\n".join(f"--- host {i}, {run.process.returncode}\n{run.stdout[-1500:]}\n{run.stderr[-3000:]}" for i, run in self.hosts.items())
        raise AssertionError(f"{what}\nbehind {self.done}; {self.rows()} rows, a world of {self.world()}, folders "
                             f"{sorted(p.name for p in self.runs.iterdir()) if self.runs.exists() else None}; worlds {self.worlds()}\netcd holds {self.keys()}\n{told}")

    def until(self, condition, what):
        end = time.monotonic() + SECONDS
        while not condition():
            for i, run in self.hosts.items():
                if run.process.poll() is not None:
                    self.fail(f"host {i} ended with {run.process.returncode} before {what}")
            if time.monotonic() > end:
                self.fail(f"no {what} after {SECONDS} s")
            time.sleep(0.02)

    def until_rows(self, more):
        at = self.rows()
        self.until(lambda: self.rows() >= at + more, f"row {at + more}")

    def until_whole(self, more):
        """All places have workers that train together."""
        wanted = len(self.hosts) * self.places
        self.until(lambda: self.world() == wanted and all(len(self.workers(i)) == self.places for i in self.hosts), f"world of {wanted}")
        self.until_rows(more)

    # ---- what is done ----------------------------------------------------------------------------

    def act(self, kind, draw):
        """One event, until the others train again; what was taken away is there again."""
        i = draw.choice(sorted(self.hosts)) if "coordinator" not in kind else self.coordinator()
        self.done.append(f"{kind} of {i}" if kind.split()[-1] in ("worker", "supervisor", "host", "cable") else kind)
        worlds = len(self.worlds())
        getattr(self, kind.replace(" ", "_"))(i, draw)
        if kind not in ("restart etcd", "stop etcd"):   # those that no training hears of
            self.until(lambda: len(self.worlds()) > worlds, f"world behind '{kind}'")

    def kill_worker(self, i, draw):
        os.kill(draw.choice(self.workers(i)), signal.SIGKILL)

    def kill_first(self, _i, _draw):
        signal_all([self.first()], signal.SIGKILL)

    def stop_worker(self, i, draw):
        os.kill(draw.choice(self.workers(i)), signal.SIGSTOP)

    def kill_supervisor(self, i, _draw):
        run = self.hosts.pop(i)
        run.process.kill()
        run.process.wait()
        self.gone.append(run)
        self.until_rows(5)
        self.start(i)

    kill_coordinator_supervisor = kill_supervisor

    def stop_supervisor(self, i, _draw, with_workers=False):
        pids = [self.hosts[i].process.pid] + (self.workers(i) if with_workers else [])
        signal_all(pids, signal.SIGSTOP)
        try:
            self.until(lambda: self.world() < len(self.hosts) * self.places, "world without the host that stands still")
            self.until_rows(5)
        finally:
            signal_all(pids, signal.SIGCONT)

    stop_coordinator_supervisor = stop_supervisor

    def stop_host(self, i, draw):
        self.stop_supervisor(i, draw, with_workers=True)

    stop_coordinator_host = stop_host

    def pull_cable(self, i, _draw):
        ip(f"-n {self.names[0]} link set p{i + 1} down")
        try:
            self.until(lambda: self.world() < len(self.hosts) * self.places, "world without the host that is cut off")
            self.until_rows(5)
        finally:
            ip(f"-n {self.names[0]} link set p{i + 1} up")

    def pull_coordinator_cable(self, i, draw):
        self.pull_cable(i, draw)

    def restart_etcd(self, _i, draw):
        member = draw.choice(self.etcd.members)
        member.end(signal.SIGKILL)
        self.until_rows(20)
        member.start()

    def stop_etcd(self, _i, draw):
        member = draw.choice(self.etcd.members)
        member.process.send_signal(signal.SIGSTOP)
        self.until_rows(100)
        member.process.send_signal(signal.SIGCONT)

    def empty_etcd(self, _i, _draw):
        for member in self.etcd.members:
            member.end(signal.SIGKILL)
        for member in self.etcd.members:
            shutil.rmtree(member.folder / f"{member.name}.data")
            member.start(wait=False)
        for member in self.etcd.members:
            member.wait()

    def empty_etcd_and_kill(self, i, draw):
        self.empty_etcd(i, draw)
        signal_all([self.first()], signal.SIGKILL)

    def delete_keys(self, _i, draw):
        self.etcd.members[0].call("/v3/kv/deleterange", key=text64("/skein/J/"), range_end=text64("/skein/J0"))
        if draw.random() < 0.5:
            signal_all([self.first()], signal.SIGKILL)

    def delete_view(self, i, draw):
        self.etcd.members[0].call("/v3/kv/deleterange", key=text64("/skein/J/view"))
        self.kill_worker(i, draw)

    # ---- the end ---------------------------------------------------------------------------------

    def end(self):
        (self.asked / "stop").touch()
        codes = {i: run.wait(SECONDS) for i, run in self.hosts.items()}
        if any(codes.values()):
            self.fail(f"exit codes {codes}")
        if self.follower is not None:
            self.follower.end()
        folders = sorted(p.name for p in self.runs.iterdir())
        if folders != ["elastic"]:
            self.fail(f"folders {folders}: the training began anew")
        for run in (*self.hosts.values(), *self.gone):
            left = run.left_behind()
            run.check(not left["processes"] if left else True, f"left behind: {left}")
        return self.rows(), (self.run_folder / "metrics.csv").read_bytes()


def undisturbed(folder, steps, more=()):
    """The rows of one worker to which nothing happens."""
    nothing = pathlib.Path(folder, "nothing")
    nothing.mkdir()
    with Run([PROGRAM, "--workers", 1, "--steps", steps, "--runs", nothing / "runs", "--asked", nothing, "--logical-shards", 8,
              "--checkpoint-every", 100, *more], cwd=folder) as run:
        run.check(run.wait(600) == 0, f"ended with {run.process.returncode}")
        return (nothing / "runs" / "elastic" / "metrics.csv").read_bytes()


COMMON = ["kill worker", "kill first", "stop worker", "kill supervisor", "kill coordinator supervisor", "stop supervisor", "stop coordinator supervisor",
          "stop coordinator host", "restart etcd", "stop etcd", "empty etcd", "empty etcd and kill", "delete keys", "delete view"]
CABLES = ["pull cable", "pull coordinator cable"]


def way_into(names):
    """The address of this test, and of its etcd, on the switch of the namespaces; it goes with them."""
    cable = f"set{os.getpid()}"
    for command in (f"-n {names[0]} link add up0 type veth peer name {cable} netns {os.getpid()}", f"-n {names[0]} link set up0 master br0 up",
                    f"addr add {NET}.9/24 dev {cable}", f"link set {cable} up"):
        assert ip(command), f"ip {command}"
    return f"{NET}.9"


def disturbed(seed, events, names=None):
    """One training with a list of events drawn by its seed."""
    draw = random.Random(seed)
    members = draw.choice((("a",), ("a", "b", "c")))
    hosts, places = (2, 2) if names else draw.choice(((2, 2), (3, 1)))
    kinds = COMMON + (CABLES * 2 if names else [])
    listed = draw.sample(kinds, min(events, len(kinds)))
    at = way_into(names) if names else "127.0.0.1"
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder, Cluster(members, at=at) as etcd:
        with Job(folder, etcd, hosts, places, names) as job:
            for i in range(hosts):
                job.start(i)
            job.until_whole(5)
            job.follower = Follower(job.run_folder / "metrics.csv")
            for kind in listed:
                job.act(kind, draw)
                job.until_whole(draw.randint(3, 30))
            steps, table = job.end()
            if table != undisturbed(folder, steps):
                job.fail("other rows than those of an undisturbed training")
            print(f"        seed {seed}: {len(members)} etcd, {hosts} hosts of {places}, {steps} steps, {', '.join(job.done)}", flush=True)


def seeds():
    for seed in range(asked.first, asked.first + asked.seeds):
        ran = []
        if seed % 2 == 1:
            in_three_namespaces(f"se{seed}", NET, lambda names, seed=seed, ran=ran: (ran.append(1), disturbed(seed, asked.events, names)))
        if not ran:
            disturbed(seed, asked.events)


def one_of_each(kinds, names=None, members=("a",), hosts=2, places=1):
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder, Cluster(members) as etcd, Job(folder, etcd, hosts, places, names) as job:
        draw = random.Random(1)
        for i in range(hosts):
            job.start(i)
        job.until_whole(5)
        for kind in kinds:
            job.act(kind, draw)
            job.until_whole(5)
        steps, table = job.end()
        if table != undisturbed(folder, steps):
            job.fail("other rows than those of an undisturbed training")


def etcd_loses_all():
    """Its disk is empty, its keys are deleted, the view alone is: the training goes on where it is, in its folder."""
    one_of_each(["empty etcd", "delete keys", "delete view"])


def the_coordinator_stands_still():
    """Its supervisor alone, and with its workers, of which one holds the run's folder: the others go on, and it comes back."""
    one_of_each(["stop coordinator supervisor", "stop coordinator host"])


def another_etcd():
    """An etcd of another cluster in the place of the first is none that the job knows: it ends with 1 and says how to go on."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder, Cluster() as etcd, Job(folder, etcd, 2, 1) as job:
        for i in range(2):
            job.start(i)
        job.until_whole(5)
        member = etcd.members[0]
        member.more.append("initial-cluster-token: another")
        job.empty_etcd(0, None)
        for i, run in job.hosts.items():
            code = run.wait(SECONDS)
            if code != 1 or "resume" not in run.stderr:
                job.fail(f"host {i} ended with {code}")
        folders = sorted(p.name for p in job.runs.iterdir())
        assert folders == ["elastic"], folders


CASES = [("etcd loses all", etcd_loses_all), ("the coordinator stands still", the_coordinator_stands_still), ("another etcd", another_etcd), ("seeds", seeds)]

if __name__ == "__main__":
    run_cases(CASES, asked.case)

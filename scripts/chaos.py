#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""chaos.py [--faults N] [--seed S] [--seconds T] [--sort] [--keep]: what scripts/chaos runs when everything is built.

The faults are drawn from the seed before anything starts; which process one hits depends on what runs then.
"""
import argparse
import heapq
import json
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
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "programs"))
import chaos_corpus  # noqa: E402
from program import Run, find_program, free_port  # noqa: E402

NODES = ("a", "b", "c", "d")
DRIVERS = ("first", "second")
RUN_SECONDS = 120.0      # of one program; some seconds when nothing happens
CALM_SECONDS = 60.0      # for the cluster to be whole again
# Kinds of faults: how often one is drawn, and for how long it lasts (seconds, least and most).
# A head comes back, and a driver's connections flow again, well within the ten seconds for which a driver looks for a head at
# its start and for which a head waits for one that is away.
KINDS = {
    "worker killed": (25, 0, 0),
    "worker stopped": (12, 0.1, 5),
    "agent killed": (10, 0, 3),
    "agent stopped": (12, 0.1, 8),
    "head killed": (8, 0, 3),
    "connection cut": (14, 0, 0),
    "connections delayed": (8, 0.5, 4),
    "connections paused": (8, 0.3, 3),
    "host cut off": (5, 0.3, 8),
}


def say(text):
    print(text, flush=True)


def draw_faults(seed, count, seconds, kinds):
    """[(moment, kind, how long, three more numbers in [0, 1))]: each kind at least once, if there are enough."""
    rng = random.Random(seed)
    names = list(kinds)
    first = rng.sample(names, len(names))[:count]
    drawn = first + rng.choices(names, [kinds[k][0] for k in names], k=count - len(first))
    moments = sorted(rng.uniform(0, seconds) for _ in drawn)
    return [(at, kind, rng.uniform(*kinds[kind][1:]), (rng.random(), rng.random(), rng.random())) for at, kind in zip(moments, drawn)]


def ip(command):
    return subprocess.run(["ip", *command.split()], capture_output=True, check=False).returncode == 0


class Hosts:
    """Network namespaces, joined by a bridge in the first, or this host alone."""

    def __init__(self):
        self.names = [f"skc{os.getpid()}{i}" for i in range(1 + len(NODES))]
        self.has_own = os.geteuid() == 0 and shutil.which("ip") is not None and self.make()
        self.head = "10.77.0.1" if self.has_own else "127.0.0.1"

    def make(self):
        main = self.names[0]
        commands = [f"netns add {name}" for name in self.names] + [f"-n {name} link set lo up" for name in self.names]
        commands += [f"-n {main} link add br0 type bridge", f"-n {main} addr add 10.77.0.1/24 dev br0", f"-n {main} link set br0 up"]
        for i, name in enumerate(self.names[1:], 1):
            commands += [f"-n {main} link add p{i} type veth peer name eth0 netns {name}", f"-n {main} link set p{i} master br0 up",
                         f"-n {name} addr add 10.77.0.{i + 1}/24 dev eth0", f"-n {name} link set eth0 up"]
        if all(ip(command) for command in commands):
            return True
        self.remove()
        return False

    def remove(self):
        for name in self.names:
            ip(f"netns del {name}")

    def at(self, i):
        """How a command begins that runs at the head's host (0) or a node's."""
        return ["ip", "netns", "exec", self.names[i]] if self.has_own else []

    def plug(self, i, state):
        ip(f"-n {self.names[0]} link set p{i} {state}")

    def sockets(self, ports):
        """What the kernel still has of TCP, but for the ends of connections that wait for stray packets."""
        found = []
        for i in range(len(self.names) if self.has_own else 1):
            for table in ("tcp", "tcp6"):
                text = subprocess.run([*self.at(i), "cat", f"/proc/net/{table}"], capture_output=True, text=True, check=False).stdout
                for line in text.splitlines()[1:]:
                    fields = line.split()
                    here, there, state = fields[1], fields[2], fields[3]
                    ours = self.has_own or {int(end.split(":")[1], 16) for end in (here, there)} & set(ports)
                    if ours and state != "06":
                        found.append(f"host {i}: {here} {there} state {state}")
        return found


class Proxy:
    def __init__(self, chaos, ports):
        chaos.proxy_errors = open(chaos.logs / "proxy", "wb")
        command = [*chaos.hosts.at(0), sys.executable, pathlib.Path(__file__).parent / "chaos_proxy.py", chaos.hosts.head, *map(str, ports)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=chaos.proxy_errors, start_new_session=True)
        self.process.stdout.readline()
        self.last = 0
        self.hits = 0
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.hits += json.loads(line)["done"]

    def tell(self, **order):
        self.last += 1
        self.process.stdin.write(json.dumps({"id": self.last, **order}).encode() + b"\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.reader.join()


class Driver(threading.Thread):
    """Runs the program again and again, and compares."""

    def __init__(self, chaos, name, program):
        super().__init__()
        self.chaos, self.name, self.program = chaos, name, program
        self.runs, self.failure, self.longest = 0, None, 0.0

    def run(self):
        while not self.chaos.is_calm and not self.failure:
            self.once()

    def once(self):
        begin = time.monotonic()
        command = self.program.command(find_program, self.chaos.address_of(self.name))
        with self.chaos.start(0, *command, **self.program.environment) as run:
            try:
                self.failure = self.judge(run)
            except Exception:    # of this script
                self.failure = traceback.format_exc()
            if self.failure:
                self.chaos.write_log(f"driver-{self.name}", run)
        self.longest = max(self.longest, time.monotonic() - begin)
        self.runs += 1

    def judge(self, run):
        try:
            code = run.process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            return f"run {self.runs + 1} did not end in {RUN_SECONDS} s; the cluster says: {self.chaos.status()}"
        if wrong := self.program.wrong(code, run.stdout, run.stderr):
            return f"run {self.runs + 1} {wrong}"
        left = run.left_behind(10.0)
        return f"run {self.runs + 1} left behind {left}" if left else None


class Chaos:
    def __init__(self, arguments):
        self.seed = arguments.seed
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="skein-chaos-"))
        self.logs, self.work = self.folder / "logs", self.folder / "work"
        self.env = {"HOME": self.folder / "home", "XDG_CONFIG_HOME": self.folder / "config", "TMPDIR": self.folder / "tmp"}
        for path in (self.logs, self.work, *self.env.values()):
            path.mkdir()
        self.programs = (chaos_corpus.Words, chaos_corpus.Sort if arguments.sort else chaos_corpus.Words)
        self.skein = find_program("skein")
        self.hosts = Hosts()
        self.ports = [free_port() for _ in range(2 + len(NODES) + len(DRIVERS) - 1)] if not self.hosts.has_own else list(range(7117, 7124))
        self.head_port, *doors = self.ports
        self.doors = dict(zip([*NODES, *DRIVERS], doors))
        self.is_calm, self.ending = False, False
        self.findings, self.counts, self.missed, self.unplugged = [], {}, 0, [0] * (1 + len(NODES))
        self.head, self.agents, self.due, self.serial = None, {}, [], 0
        self.stopped = {}    # pid: how many faults hold it

    # ---- processes ----

    def address_of(self, who):
        return f"{self.hosts.head}:{self.doors[who]}"

    def start(self, host, *arguments, **more):
        return Run([*self.hosts.at(host), *arguments], cwd=self.work, **self.env, **more)

    def start_head(self):
        self.head = self.start(0, self.skein, "head", "--listen", f"{self.hosts.head}:{self.head_port}")

    def start_agent(self, name):
        self.agents[name] = self.start(1 + NODES.index(name), self.skein, "join", self.address_of(name), "--name", name, "--resources", "cpu=1")

    def write_log(self, name, run):
        self.serial += 1
        (self.logs / f"{self.serial:04}-{name}").write_text(f"{' '.join(run.arguments)}\n--- stdout\n{run.stdout[-20000:]}\n--- stderr\n{run.stderr}")

    def retire(self, name, run):
        """Of one that has ended or is killed now."""
        run.process.kill()
        run.process.wait()
        self.write_log(name, run)
        run.__exit__()

    def status(self):
        with self.start(0, self.skein, "status", f"{self.hosts.head}:{self.head_port}", "--json") as run:
            try:
                return json.loads(run.stdout) if run.process.wait(20) == 0 else {"error": run.stderr}
            except subprocess.TimeoutExpired:
                return {"error": "skein status does not end"}

    def workers_of(self, name):
        found = []
        for pid in self.agents[name].children() if name in self.agents else []:
            try:
                if b"--skein-worker=" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                pass
        return found

    # ---- faults ----

    def later(self, seconds, does):
        self.serial += 1
        heapq.heappush(self.due, (time.monotonic() + seconds, self.serial, does))

    def freeze(self, pid, seconds):
        os.kill(pid, signal.SIGSTOP)
        self.stopped[pid] = self.stopped.get(pid, 0) + 1

        def thaw():
            self.stopped[pid] -= 1
            if self.stopped[pid] == 0:
                del self.stopped[pid]
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass    # it was killed meanwhile
        self.later(seconds, thaw)

    def strike(self, kind, seconds, chosen):
        """False: there was nobody to hit."""
        name = NODES[int(chosen[0] * len(NODES))]
        who = [*NODES, *DRIVERS][int(chosen[0] * len(self.doors))]
        if kind.startswith("worker"):
            workers = self.workers_of(name) or [pid for other in NODES for pid in self.workers_of(other)]
            if not workers:
                return False
            pid = workers[int(chosen[1] * len(workers))]
            try:
                if kind == "worker killed":
                    os.kill(pid, signal.SIGKILL)
                else:
                    self.freeze(pid, seconds)
            except ProcessLookupError:
                return False    # it has ended meanwhile
        elif kind == "agent killed":
            if name not in self.agents:
                return False
            self.retire(f"agent-{name}", self.agents.pop(name))
            self.later(seconds, lambda: self.start_agent(name))
        elif kind == "agent stopped":
            if name not in self.agents:
                return False
            self.freeze(self.agents[name].process.pid, seconds)
        elif kind == "head killed":
            if self.head is None:
                return False
            self.retire("head", self.head)
            self.head = None
            self.later(seconds, self.start_head)
        elif kind == "connection cut":
            self.proxy.tell(port=self.doors[who], do="cut", how=("reset", "close", "half")[int(chosen[1] * 3)], which=chosen[2])
        elif kind == "connections delayed":
            self.proxy.tell(port=self.doors[who], do="delay", seconds=seconds, each=0.3 * chosen[1])
            self.later(seconds, lambda: None)
        elif kind == "connections paused":
            longer = seconds if who in DRIVERS else seconds * 2.5    # nodes have more time
            self.proxy.tell(port=self.doors[who], do="pause", seconds=longer)
            self.later(longer, lambda: None)
        else:
            self.cut_off(1 + NODES.index(name), seconds)
        return True

    def cut_off(self, host, seconds):
        self.unplugged[host] += 1
        self.hosts.plug(host, "down")

        def plug():
            self.unplugged[host] -= 1
            if self.unplugged[host] == 0:
                self.hosts.plug(host, "up")
        self.later(seconds, plug)

    def look(self):
        """Those that have ended by themselves: a node may be refused while the head has not missed the one before."""
        for name, run in list(self.agents.items()):
            code = run.process.poll()
            if code is None:
                continue
            if "is in the cluster already" not in run.stderr:
                self.findings.append(f"node {name} ended with {code}: {run.stderr.splitlines()[-1:]}")
            self.retire(f"agent-{name}", self.agents.pop(name))
            self.later(0.3, lambda name=name: self.start_agent(name))
        if self.head is not None and self.head.process.poll() is not None:
            self.findings.append(f"the head ended with {self.head.process.returncode}: {self.head.stderr.splitlines()[-1:]}")
            self.retire("head", self.head)
            self.head = None
            self.later(0.3, self.start_head)

    def pass_time(self, until):
        """What is due meanwhile happens."""
        while True:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
            self.look()
            if now >= until:
                return
            time.sleep(min(0.02, until - now))

    # ---- the whole ----

    def wait_until(self, condition, what, seconds=CALM_SECONDS):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.findings.append(f"{what}: not within {seconds:.0f} s; the cluster says: {self.status()}")
                return
            self.pass_time(time.monotonic() + 0.05)

    def run(self, faults):
        self.start_head()
        self.wait_until(lambda: "skein join" in self.head.stdout, "a head that listens")
        self.proxy = Proxy(self, [self.head_port, *self.doors.values()])
        for name in NODES:
            self.start_agent(name)
        drivers = [Driver(self, name, program(self.work, name, self.seed)) for name, program in zip(DRIVERS, self.programs)]
        for d in drivers:
            d.start()
        begin = time.monotonic()
        for at, kind, seconds, chosen in faults:
            self.pass_time(begin + at)
            if any(d.failure for d in drivers):
                break
            if self.strike(kind, seconds, chosen):
                self.counts[kind] = self.counts.get(kind, 0) + 1
            else:
                self.missed += 1
        self.is_calm = True
        while self.due:
            self.pass_time(time.monotonic() + 0.05)
        while any(d.is_alive() for d in drivers):
            self.pass_time(time.monotonic() + 0.05)
        self.check_calm(drivers)
        for d in drivers:
            if d.failure:
                self.findings.append(f"program {d.name}: {d.failure}")
        return drivers, time.monotonic() - begin

    def check_calm(self, drivers):
        """All nodes come back, programs run without faults, and nothing of them is left."""
        def is_whole():
            now = self.status()
            return sorted(n["name"] for n in now.get("nodes", [])) == list(NODES) and not now["jobs"] and not any(n["workers"] for n in now["nodes"])
        self.wait_until(is_whole, "four nodes without workers")
        for d in drivers:
            if not d.failure:
                d.once()
        self.wait_until(lambda: not any(self.workers_of(name) for name in NODES), "nodes without worker processes")
        self.wait_until(is_whole, "four nodes without workers, again")

    def end(self):
        """Ends all of it; what is left is a finding."""
        if self.head is not None:
            with self.start(0, self.skein, "stop", f"{self.hosts.head}:{self.head_port}") as stop:
                if stop.wait(30) != 0:
                    self.findings.append(f"skein stop: {stop.stderr}")
        runs = [("head", self.head)] * (self.head is not None) + [(f"agent-{n}", run) for n, run in self.agents.items()]
        for name, run in runs:
            try:
                if run.process.wait(30) != 0:
                    self.findings.append(f"{name} ended with {run.process.returncode} when the cluster was stopped")
            except subprocess.TimeoutExpired:
                self.findings.append(f"{name} did not end when the cluster was stopped")
            self.write_log(name, run)
            if run.process.poll() is not None and (left := run.left_behind(10.0)):
                self.findings.append(f"{name} left behind {left}")
            run.__exit__()
        self.proxy.end()
        self.proxy_errors.close()
        said = (self.logs / "proxy").read_text()
        if said:
            self.findings.append(f"the proxy failed: {said.splitlines()[-1:]}")
        self.wait_sockets()
        kept = [self.folder / "config/skein/token", *self.logs.iterdir(), *chaos_corpus.files(self.work)]
        there = sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file() and p not in kept)
        if there:
            self.findings.append(f"files are left: {there}")

    def wait_sockets(self):
        end = time.monotonic() + 15
        while (left := self.hosts.sockets(self.ports)) and time.monotonic() < end:
            time.sleep(0.1)
        if left:
            self.findings.append(f"sockets are left: {left}")

    def kill_all(self):
        for run in [*self.agents.values(), *([self.head] if self.head else [])]:
            run.__exit__()
        if hasattr(self, "proxy") and self.proxy.process.poll() is None:
            self.proxy.process.kill()
        self.is_calm = True


def report(chaos, faults, drivers, seconds, folder):
    for kind in KINDS:
        if any(kind == f[1] for f in faults):
            say(f"  {kind:22} {chaos.counts.get(kind, 0):4} times")
    runs = sum(d.runs for d in drivers)
    names = " and ".join(sorted({d.program.__doc__.split()[0] for d in drivers}))
    lost = sum(d.program.lost for d in drivers)
    say(f"  {runs} runs of {names}, {lost} of which said object_lost; the longest took {max(d.longest for d in drivers):.1f} s; "
        f"{chaos.missed} faults found nobody")
    for finding in chaos.findings:
        say(f"FAILED {finding}")
    if chaos.findings:
        say(f"seed {chaos.seed}, logs in {folder}")
    say(json.dumps({"chaos": {"seed": chaos.seed, "faults": sum(chaos.counts.values()), "by_kind": chaos.counts, "missed": chaos.missed,
                              "runs": runs, "nodes": len(NODES), "namespaces": chaos.hosts.has_own, "seconds": round(seconds, 1),
                              "findings": len(chaos.findings)}}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="drawn if it is not given")
    parser.add_argument("--sort", action="store_true", help="the second program is 092_sort, whose lines are objects on nodes")
    parser.add_argument("--seconds", type=float, default=None, help="for all faults; 0.8 for each if it is not given")
    parser.add_argument("--keep", action="store_true", help="keep the logs also when all is well")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 32)
    chaos = Chaos(arguments)
    kinds = {k: v for k, v in KINDS.items() if chaos.hosts.has_own or k != "host cut off"}
    length = arguments.seconds if arguments.seconds is not None else 0.8 * arguments.faults
    faults = draw_faults(arguments.seed, arguments.faults, length, kinds)
    say(f"chaos: {len(faults)} faults in {length:.0f} s, seed {arguments.seed}, {'namespaces' if chaos.hosts.has_own else 'loopback'}")
    is_well = False
    try:
        drivers, seconds = chaos.run(faults)
        chaos.end()
        report(chaos, faults, drivers, seconds, chaos.folder)
        is_well = not chaos.findings
    finally:
        chaos.kill_all()
        if chaos.hosts.has_own:
            chaos.hosts.remove()
        if is_well and not arguments.keep:
            shutil.rmtree(chaos.folder)
        else:
            say(f"logs: {chaos.logs}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())

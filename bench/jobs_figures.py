#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/jobs.cpp: a head, a node and what disturbs them, as processes of this host.

jobs_figures.py PROGRAM [--only CASE]    cases: first_line, upload, idle, output, hostile

With SKEIN_PYTHON, a Python with ray[default], the same job goes to Ray in turns. Needs $SKEIN_BUILD_DIR/bin/skein.
"""
import argparse
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import queue
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
BURST = 'import os, time\nline = b"x" * 99 + b"\\n"\nwhile True:\n    begin = time.monotonic()\n' \
        '    os.write(1, b"")\n    left = memoryview(line * 100_000)\n    while left: left = left[os.write(1, left[:1 << 16]):]\n' \
        '    time.sleep(max(0, 0.1 - (time.monotonic() - begin)))\n'


def figure(name, value, unit, baseline=None, base=None, at_most=None, at_least=None, **more):
    """One line as bench/bench.hpp prints them."""
    ratio = value / base if base else None
    compared = value if ratio is None else ratio
    ok = None if at_most is None and at_least is None else compared <= at_most if at_most is not None else compared >= at_least
    print(json.dumps({"name": name, "value": round(value, 6), "unit": unit, "baseline": baseline, "baseline_value": base, "ratio": ratio,
                      "bar": at_most if at_most is not None else at_least, "ok": ok, **more}, separators=(",", ":")), flush=True)


def percentile(values, fraction):
    values = sorted(values)
    return values[min(int(fraction * len(values)), len(values) - 1)] if values else float("nan")


class Cluster:
    """A head and one node with four cpus, in a folder of their own."""

    def __init__(self, program):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="skein-bench-"))
        self.program = program
        self.skein = pathlib.Path(os.environ["SKEIN_BUILD_DIR"]) / "bin/skein"
        self.env = {**os.environ, "HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config"), "SKEIN_BENCH_CALLS": "1",
                    "SKEIN_LOG_LEVEL": "error"}
        for name in ("SKEIN_TOKEN", "SKEIN_TOKEN_FILE", "SKEIN_ADDRESS", "XDG_CACHE_HOME"):
            self.env.pop(name, None)
        self.head = subprocess.Popen([self.skein, "head", "--listen", "127.0.0.1:0"], env=self.env, stdout=subprocess.PIPE, text=True)
        for line in self.head.stdout:
            if found := re.search(r"skein join (\S+)\n", line):
                self.address = found.group(1)
                break
        else:
            sys.exit("jobs: the head has not started")
        threading.Thread(target=self.head.stdout.read, daemon=True).start()
        self.env["SKEIN_ADDRESS"] = self.address
        self.node = subprocess.Popen([self.skein, "join", self.address, "--name", "n1", "--resources", "cpu=4"], env=self.env,
                                     stdout=subprocess.PIPE, text=True)
        self.node.stdout.readline()
        self.key = self.tool("dashboard", "--key", "view").strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in (self.node, self.head):
            child.terminate()
            child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def tool(self, *words, check=True):
        return subprocess.run([self.skein, *words], env=self.env, check=check, capture_output=True, text=True).stdout

    def resident(self, child):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{child.pid}/status").read_text()).group(1)) / 1024

    @contextlib.contextmanager
    def calls(self, name, seconds):
        """Small calls, one after the other, at least so long and while the body runs; gives their times in a list afterwards."""
        log, stop, out = self.folder / f"{name}.log", self.folder / f"{name}.stop", []
        child = subprocess.Popen([self.program, "calls", log, stop, "--address", self.address, "--workers", "1"], env=self.env)
        while not log.exists() or log.stat().st_size < 1000:
            if child.poll() is not None:
                sys.exit("jobs: the program that calls has ended")
            time.sleep(0.01)
        begin, skipped = time.monotonic(), log.stat().st_size
        yield out
        time.sleep(max(0.0, seconds - (time.monotonic() - begin)))
        stop.touch()
        child.wait()
        out += [int(t) / 1000 for t in log.read_text()[skipped:].split()[1:]]


def until_line(words, env, line):
    """Milliseconds from the start of a program to the line that it prints; it is waited for."""
    begin = time.monotonic()
    child = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    took = None
    for got in child.stdout:
        if got.strip() == line:
            took = (time.monotonic() - begin) * 1000
            break
    child.stdout.read()
    if child.wait() != 0 or took is None:
        sys.exit(f"jobs: {words} has failed")
    return took


class Ray:
    """Its head with the dashboard, which is what takes jobs there."""

    def __init__(self):
        python = os.environ.get("SKEIN_PYTHON")
        self.ray = pathlib.Path(python).parent / "ray" if python else None
        self.folder = None
        if self.ray is None or not self.ray.exists():
            print("jobs: no Ray, SKEIN_PYTHON names no Python with ray[default]", file=sys.stderr)
            self.ray = None
            return
        self.folder = tempfile.mkdtemp(prefix="ray-")
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.port, port = probe.getsockname()[1], other.getsockname()[1]
        self.env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PATH": f"{self.ray.parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        self.version = subprocess.check_output([self.ray, "--version"], env=self.env, text=True).split()[-1]
        self.child = subprocess.Popen([self.ray, "start", "--head", "--block", "--num-cpus", "4", "--port", str(port), "--dashboard-port",
                                       str(self.port), "--temp-dir", self.folder, "--object-store-memory", "100000000"], env=self.env,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for _ in range(600):
            try:
                http.client.HTTPConnection("127.0.0.1", self.port, timeout=1).request("GET", "/api/version")
                break
            except OSError:
                time.sleep(0.2)

    def submit(self):
        return until_line([self.ray, "job", "submit", "--address", f"http://127.0.0.1:{self.port}", "--", "echo", "x"], self.env, "x")

    def end(self):
        if self.ray is None:
            return
        self.child.terminate()
        self.child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def first_line(c):
    files = c.folder / "files"
    files.mkdir()
    (files / "one.txt").write_text("one\n")
    ours, bare, theirs = [], [], []
    ray = Ray()
    try:
        for turn in range(-1, 15):
            t = until_line([c.skein, "job", "submit", "--working-dir", files, "--", "echo", "x"], c.env, "x")
            u = until_line([c.skein, "job", "submit", "--", "echo", "x"], c.env, "x")
            if turn >= 0:
                ours.append(t)
                bare.append(u)
            if ray.ray and turn < 5:
                t = ray.submit()
                if turn >= 0:
                    theirs.append(t)
    finally:
        ray.end()
    figure("jobs.first_line", statistics.median(ours), "ms", at_most=50, worst=round(max(ours), 2))
    figure("jobs.first_line_without_folder", statistics.median(bare), "ms", at_most=50, worst=round(max(bare), 2))
    if theirs:
        figure("jobs.first_line_against_ray", statistics.median(ours), "ms", "ray job submit", statistics.median(theirs), at_most=0.05,
               ray=ray.version)


PIPE_END = """
import hashlib, queue, socket, sys, threading
come, hash = queue.Queue(8), hashlib.sha256()
def write():
    with open(sys.argv[2], "wb", buffering=0) as to:
        while (piece := come.get()) is not None:
            hash.update(piece)
            to.write(piece)
writing = threading.Thread(target=write)
writing.start()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as at:
    while piece := at.recv(1 << 20):
        come.put(piece)
come.put(None)
writing.join()
"""


def bare_pipe(paths, to):
    """Seconds for what a submit cannot do without: read, SHA-256, loopback, SHA-256, write, by two threads at each end."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        begin = time.monotonic()
        end = subprocess.Popen([sys.executable, "-c", PIPE_END, str(door.getsockname()[1]), str(to)])
        at, _ = door.accept()
        pieces = queue.Queue(8)

        def read():
            digest = hashlib.sha256()
            for path in paths:
                with open(path, "rb", buffering=0) as of:
                    while piece := of.read(MIB):
                        digest.update(piece)
                        pieces.put(piece)
            pieces.put(None)
        reading = threading.Thread(target=read)
        reading.start()
        with at:
            while (piece := pieces.get()) is not None:
                at.sendall(piece)
        reading.join()
        end.wait()
        return time.monotonic() - begin


def upload(c):
    files = c.folder / "large"
    files.mkdir()
    block, ours, pipes = os.urandom(MIB), [], []
    for turn in range(5):
        paths = []
        for n in range(50):    # of 10 MB, other ones each time
            path = files / f"{n}.bin"
            with open(path, "wb") as to:
                to.write(os.urandom(64) + block * 9 + block[:557_504])
            paths.append(path)
        size = sum(p.stat().st_size for p in paths)
        pipes.append(size / bare_pipe(paths, c.folder / "pipe") / 1e6)
        begin = time.monotonic()
        c.tool("job", "submit", "--no-wait", "--working-dir", files, "--", "true")
        ours.append(size / (time.monotonic() - begin) / 1e6)
    figure("jobs.upload", statistics.median(ours), "MB/s", "a bare pipe", statistics.median(pipes), at_least=0.8)

    many, known = c.folder / "many", []
    for n in range(20_000):
        path = many / str(n // 200) / f"{n}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000) * 2)
    time.sleep(2.5)    # what has just been written is not remembered
    for turn in range(6):
        begin = time.monotonic()
        c.tool("job", "submit", "--no-wait", "--working-dir", many, "--", "true")
        known.append(time.monotonic() - begin)
    figure("jobs.upload_known", statistics.median(known[1:]), "s", at_most=0.15, first=round(known[0], 3))


def idle(c):
    time.sleep(3)
    figure("jobs.head_idle", c.resident(c.head), "MiB", at_most=40)


def output(c):
    quiet, loud, control = [], [], []
    for turn in range(3):
        with c.calls(f"quiet{turn}", 4) as out:
            pass
        quiet += out
        # What such a process costs the machine, whoever reads it.
        child = subprocess.Popen([sys.executable, "-c", BURST], stdout=subprocess.PIPE)
        reader = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(child.stdout.fileno(), 1 << 16), b"")])
        reader.start()
        with c.calls(f"control{turn}", 4) as out:
            pass
        control += out
        child.kill()
        child.wait()
        reader.join()
        job = c.tool("job", "submit", "--no-wait", "--", sys.executable, "-c", BURST).strip()
        while json.loads(c.tool("job", "status", job, "--json"))["lines"] == 0:
            time.sleep(0.05)
        before = json.loads(c.tool("job", "status", job, "--json"))["lines"]
        begin = time.monotonic()
        with c.calls(f"loud{turn}", 4) as out:
            pass
        loud += out
        lines = json.loads(c.tool("job", "status", job, "--json"))["lines"] - before
        rate = lines * 100 / 1e6 / (time.monotonic() - begin)
        c.tool("job", "stop", job)
        c.tool("job", "wait", job, check=False)
    for fraction, name, bar in ((0.5, "median", None), (0.99, "p99", 2)):
        figure(f"jobs.call_{name}_beside_output", percentile(loud, fraction), "us", "without a job", percentile(quiet, fraction), at_most=bar,
               beside_bystander=round(percentile(control, fraction), 1), job_mb_s=round(rate, 1))


HOSTILE = r'''
import resource, selectors, socket, sys, time
port, count, at_once = (int(w) for w in sys.argv[1:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
at_once = min(at_once, min(hard, 65536) - 50)
wait, begun, over = selectors.DefaultSelector(), 0, 0
texts = [b"GET / HTTP/1.1\r\nHost: x", b"POST /api/jobs/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{", b"", b"GET /api/jobs/ HTTP/1.1\r\nHost: localhost\r\n\r\n"]
live = {}
end = time.monotonic() + 60
while over < count and time.monotonic() < end:
    while begun < count and len(live) < at_once:
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        wait.register(s, selectors.EVENT_WRITE, texts[begun % len(texts)])
        live[s] = time.monotonic()
        begun += 1
        if begun % 64 == 0: break
    for key, _ in wait.select(0.05 if begun == count or len(live) >= at_once else 0):
        s = key.fileobj
        try:
            if key.data is not None:
                s.send(key.data)
                wait.modify(s, selectors.EVENT_READ, None)
            elif not s.recv(4096):
                raise OSError
        except BlockingIOError:
            pass
        except OSError:
            wait.unregister(s)
            s.close()
            del live[s]
            over += 1
print(over, flush=True)
'''


def hostile(c, count=10_000):
    host, _, port = c.address.rpartition(":")
    host = host.removeprefix("tcp:")

    def honest(done):
        times, failed = [], 0
        while not done(len(times)):
            begin = time.monotonic()
            try:
                way = http.client.HTTPConnection(host, int(port), timeout=10)
                way.request("GET", "/api/v1/nodes", headers={"Authorization": f"Bearer {c.key}"})
                answer = way.getresponse()
                answer.read()
                failed += answer.status != 200
                way.close()
            except (OSError, http.client.HTTPException):
                failed += 1
            times.append((time.monotonic() - begin) * 1000)
            time.sleep(0.002)
        return times, failed

    before, wrong = honest(lambda n: n >= 1000)
    memory = c.resident(c.head)
    with c.calls("quiet", 4) as quiet:
        pass
    strangers = subprocess.Popen([sys.executable, "-c", HOSTILE, port, str(count), "4000"], stdout=subprocess.PIPE, text=True)
    begin = time.monotonic()
    with c.calls("hostile", 0) as loud:
        during, failed = honest(lambda n: strangers.poll() is not None)
    took = time.monotonic() - begin
    more = c.resident(c.head) - memory
    figure("jobs.http_p99_beside_hostile", percentile(during, 0.99), "ms", "without them", percentile(before, 0.99), at_most=2,
           median=round(percentile(during, 0.5), 2), longest=round(max(during), 1), requests=len(during), failed=failed,
           closed=int(strangers.stdout.read() or 0), seconds=round(took, 1))
    figure("jobs.http_failed_beside_hostile", failed, "requests", at_most=0, of=len(during))
    figure("jobs.call_p99_beside_hostile", percentile(loud, 0.99), "us", "without them", percentile(quiet, 0.99), at_most=2)
    figure("jobs.head_memory_beside_hostile", more, "MiB more", at_most=64)


def main():
    cases = {f.__name__: f for f in (first_line, upload, idle, output, hostile)}
    parse = argparse.ArgumentParser()
    parse.add_argument("program")
    parse.add_argument("--only", choices=cases)
    args = parse.parse_args()
    for name, case in cases.items():
        if args.only in (None, name):
            with Cluster(args.program) as c:
                case(c)


main()

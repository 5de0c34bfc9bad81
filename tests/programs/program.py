# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of a build folder as a person would, and finds what they leave behind.

A test that cannot run here exits with 77 and says why; ctest counts it as skipped.
"""
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

BUILD = pathlib.Path(os.environ.get("SKEIN_BUILD_DIR", "build/clang")).resolve()
DEADLINE = 240.0  # of one program run; generous, because the machine may be busy


def skip(reason):
    print("skipped: " + reason)
    sys.exit(77)


def find_program(name):
    found = shutil.which(name, path=os.pathsep.join(str(BUILD / d) for d in ("examples", "tests", "tests/programs", "bin")))
    if not found:
        skip(f"{name} is not built in {BUILD}")
    return found


def free_port():
    """A TCP port that nobody listens at, outside the range from which the kernel serves those who do not choose:
    for launchers, which name a port before anybody listens there."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(1024, low) if low > 2048 else random.randrange(20000, 60000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    sys.exit("no free port found")


def environment(**changes):
    """Ours, without the variables of any launcher; plus a mark by which left-over processes are found."""
    drop = re.compile(r"^(SKEIN_(?!BUILD|SOURCE|DEPS)|SLURM|OMPI_|PMI|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC)")
    env = {k: v for k, v in os.environ.items() if not drop.match(k)}
    env["OMP_NUM_THREADS"] = "1"
    env.update({k: str(v) for k, v in changes.items()})
    return env


class Marked:
    """Processes started under one mark, wherever they move: the mark is in their environment."""

    def __init__(self):
        self.mark = f"skein-test-{os.getpid()}-{time.monotonic_ns()}"

    def processes(self):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if ("SKEIN_TEST_MARK=" + self.mark).encode() in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state not in "ZX":
                        found.append(int(entry.name))
            except OSError:
                pass  # it ended meanwhile, or is not ours
        return sorted(found)


def shared_memory():
    folder = pathlib.Path("/dev/shm")
    return sorted(p.name for p in folder.iterdir() if "skein" in p.name) if folder.is_dir() else []


def abstract_sockets():
    """Those whose maker is gone: @skein-<pid>-..., @skein-keeper-<pid>-... of a process that lives may be another test's."""
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    names = {f[7] for f in (line.split() for line in lines[1:]) if len(f) > 7 and f[7].startswith("@skein-")}
    pids = {name: next((part for part in name.split("-") if part.isdigit()), "0") for name in names}
    return sorted(name for name, pid in pids.items() if not pathlib.Path("/proc", pid).is_dir())


class Run:
    """One program run, with its output and what it leaves behind."""

    def __init__(self, arguments, cwd=None, **env):
        self.marked = Marked()
        self.before = (shared_memory(), abstract_sockets())
        self.out = tempfile.TemporaryFile()
        self.err = tempfile.TemporaryFile()
        self.arguments = [str(a) for a in arguments]
        self.process = subprocess.Popen(self.arguments, cwd=cwd, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        env=environment(SKEIN_TEST_MARK=self.marked.mark, **env), start_new_session=True)
        self.begin = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.marked.processes():
            with contextlib.suppress(ProcessLookupError):   # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.out.close()
        self.err.close()

    @staticmethod
    def _text(file):
        return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

    @property
    def stdout(self):
        return self._text(self.out)

    @property
    def stderr(self):
        return self._text(self.err)

    def children(self):
        """Processes of this run but the first."""
        return [p for p in self.marked.processes() if p != self.process.pid]

    def wait(self, seconds=DEADLINE):
        """The exit code; a negative signal number if a signal ended it."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"still runs after {seconds} s")

    def wait_until(self, condition, what, seconds=DEADLINE):
        """Looks again and again until condition() is true; its value. `what` may be a function, of what was seen last."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            if self.process.poll() is not None and not condition():
                self.fail(f"ended with {self.process.returncode} before {what}")
            time.sleep(0.005)
        self.fail(f"no {what() if callable(what) else what} after {seconds} s")

    def check_nothing_left(self):
        left = self.left_behind()
        self.check(not left, f"left behind: {left}")

    def left_behind(self, seconds=20.0):
        """What is there that was not before; processes get their time to end, and what tests beside this one made goes."""
        end = time.monotonic() + seconds
        while True:
            left = {"processes": self.marked.processes(),
                    "shared memory": [s for s in shared_memory() if s not in self.before[0]],
                    "sockets": [s for s in abstract_sockets() if s not in self.before[1]]}
            left = {k: v for k, v in left.items() if v}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.01)

    def fail(self, what):
        raise AssertionError(f"{' '.join(self.arguments)}\n{what}\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-3000:]}")

    def check(self, condition, what):
        if not condition:
            self.fail(what)


TINY = ["--context", "16", "--layers", "1", "--heads", "2", "--dim", "32", "--batch", "8", "--warmup", "5", "--sample", "0", "--plain"]


# A rank of any program, which knows its place from its environment alone; its first argument is the test's folder.
RANK = r"""
import os, pathlib, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
group, size = int(os.environ["GROUP_RANK"]), int(os.environ["WORLD_SIZE"])
here = pathlib.Path(sys.argv[1])
def note(name, text=""):
    part = here / (name + ".part%d" % os.getpid())
    part.write_text(str(text))
    part.rename(here / name)
def until(name):
    while not (here / name).exists():
        time.sleep(0.005)
"""


def write_text(folder, size=20000):
    """A text with some structure, the same on every machine."""
    path = pathlib.Path(folder) / "text.txt"
    words = ["the", "ring", "of", "ranks", "adds", "every", "gradient", "once", "and", "then", "again", "\n"]
    out, state = [], 12345
    while sum(map(len, out)) + len(out) < size:
        state = (state * 1103515245 + 12345) % (1 << 31)
        out.append(words[(state >> 8) % len(words)])
    path.write_text(" ".join(out))
    return path


def run_cases(cases, only=None):
    """Runs named functions, prints one line each, ends the process non-zero if any failed."""
    failed = 0
    for name, case in cases:
        if only and only not in name:
            continue
        begin = time.monotonic()
        try:
            case()
            print(f"ok      {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        except AssertionError as why:
            failed += 1
            print(f"FAILED  {name}\n{why}", flush=True)
        except Exception:   # of the test itself: the other cases still run
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)

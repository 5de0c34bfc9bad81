#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strangers, lies and a failing machine against whole jobs: a job ends well, or with one error that names the cause.

    hostile_test.py [NAME] [--long]

Strangers are processes of another user (of ours without root): idle connections that are opened again when dropped,
half handshakes, slow bytes, replayed and reflected handshakes. Then wrong tokens, a process without free descriptors,
and every kind of failing file operation. Damaged bytes are the program skein_hostile_streams, in virtual time. Nothing
may be left behind. --long is the campaign: a million changed bits, every failing call.
"""
import argparse
import contextlib
import ctypes
import os
import pathlib
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, abstract_sockets, find_program, free_port, run_cases, write_text  # noqa: E402

NOBODY = 65534
STEPS = 40
QUIET_SECONDS = 0.0    # of the undisturbed run, set by main()


# ---- strangers ---------------------------------------------------------------------------------------

@contextlib.contextmanager
def strangers(body, *arguments):
    """Runs body in a process of another user, and ends it with the block."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)    # PR_SET_PDEATHSIG: never outlives the test
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
            body(*arguments)
            status = 0
        finally:
            os._exit(status)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def knock(address):
    """A connection to ("127.0.0.1", port) or to an abstract socket; nothing when nobody answers."""
    unix = isinstance(address, str)
    s = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    s.setblocking(False)
    try:
        s.connect("\0" + address[1:] if unix else address)
    except BlockingIOError:
        pass
    except OSError:
        s.close()
        return None
    return s


def stay_idle(addresses, count):
    """Holds count connections to each address that addresses() names, for ever; what is dropped is opened again."""
    held = {}
    while True:
        for address in addresses():
            connections = held.setdefault(address, [])
            for s in connections[:]:
                try:
                    if s.recv(4096) == b"":
                        raise OSError
                except BlockingIOError:
                    pass
                except OSError:
                    s.close()
                    connections.remove(s)
            while len(connections) < count:
                s = knock(address)
                if s is None:
                    break
                connections.append(s)
        time.sleep(0.002)


def sockets_of_jobs():
    return [name for name in abstract_sockets() if name.startswith("@skein")]


def half_handshakes(port, words, count):
    """Says the first bytes of a hello `count` times, never the rest; hundreds at a time."""
    held, said = [], 0
    while said < count:
        s = knock(("127.0.0.1", port))
        if s is None:
            time.sleep(0.01)
            continue
        said += 1
        held.append(s)
        try:
            s.setblocking(True)
            s.settimeout(1)
            s.sendall(words[:20])
        except OSError:
            pass
        if len(held) > 300:
            held.pop(0).close()
    time.sleep(1000)


def slow_bytes(port, words, count):
    """A byte of a good hello every 50 ms, over and over, on `count` connections."""
    held = {}
    while True:
        while len(held) < count:
            s = knock(("127.0.0.1", port))
            if s is None:
                break
            held[s] = 0
        for s in list(held):
            try:
                s.send(words[held[s]:held[s] + 1] or b"x")
                held[s] += 1
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                del held[s]
        time.sleep(0.05)


def replay_and_reflect(port, words):
    """What a client with the token once said, to a new server; and what a server says, back to itself."""
    while True:
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as s:
                s.settimeout(5)
                s.sendall(words)
                answer = s.recv(65536)
                while s.recv(65536):
                    pass
        except OSError:
            pass
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as s:
                s.settimeout(5)
                s.sendall(answer or b"SKEIN")
                while s.recv(65536):
                    pass
        except OSError:
            pass
        time.sleep(0.01)


# ---- jobs --------------------------------------------------------------------------------------------

def listens(port):
    wanted = f":{port:04X} "
    return any(wanted in line.split(" st")[0] and " 0A " in line for line in pathlib.Path("/proc/net/tcp").read_text().splitlines())


class Job:
    """The runs of one test in a folder: supervised ones, and ranks that launch variables bring together."""

    def __init__(self, folder):
        self.folder = folder
        self.program = find_program("110_gpt_ddp")
        write_text(folder)
        self.number = 0

    def name(self):
        self.number += 1
        return f"run-{self.number}"

    def arguments(self, name, *more, steps=STEPS):
        return [self.program, *TINY, "--text", self.folder / "text.txt", "--runs", self.folder / "runs", "--run", name, "--steps", steps,
                "--eval-every", 20, *more]

    def curve(self, name):
        path = self.folder / "runs" / name / "metrics.csv"
        return path.read_bytes() if path.exists() else b""

    def rank(self, name, rank, port, *more, steps=STEPS, **env):
        variables = dict(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                         XDG_CONFIG_HOME=self.folder / "config")
        variables.update(env)
        return Run(self.arguments(name, *more, steps=steps), **variables)


def ends_well(runs, job, name, wanted, what, seconds=90):
    for run in runs:
        code = run.wait(seconds)
        run.check(code == 0, f"exit code {code} {what}")
    runs[0].check(job.curve(name) == wanted, f"another loss curve {what}")
    for run in runs:
        run.check_nothing_left()


def record(job, name):
    """Runs a world through a proxy; what rank 1 said to rank 0, in one piece."""
    port = free_port()
    proxy = socket.create_server(("127.0.0.1", 0))
    said = b""
    with job.rank(name, 0, port) as first, job.rank(name, 1, proxy.getsockname()[1]) as second:
        first.wait_until(lambda: listens(port), "a listening rank 0", 60)
        watched = selectors.DefaultSelector()
        watched.register(proxy, selectors.EVENT_READ)
        peer, is_first = {}, set()
        end = time.monotonic() + 90
        while (first.process.poll() is None or second.process.poll() is None) and time.monotonic() < end:
            for key, _ in watched.select(0.05):
                if key.fileobj is proxy:
                    there, _ = proxy.accept()
                    here = socket.create_connection(("127.0.0.1", port))
                    peer[there], peer[here] = here, there
                    if not said:
                        is_first.add(there)
                    watched.register(there, selectors.EVENT_READ)
                    watched.register(here, selectors.EVENT_READ)
                    continue
                try:
                    data = key.fileobj.recv(65536)
                    if key.fileobj in is_first:
                        said += data
                    if not data:
                        raise OSError
                    peer[key.fileobj].sendall(data)
                except OSError:
                    for s in (key.fileobj, peer[key.fileobj]):
                        with contextlib.suppress(KeyError, ValueError):
                            watched.unregister(s)
                        s.close()
        for run in (first, second):
            run.check(run.wait(5) == 0, "the recorded world failed")
        first.check(len(said) > 100, "nothing was recorded")
    proxy.close()
    return said


def within(run, seconds):
    took = time.monotonic() - run.begin
    print(f"        {took:.1f} s, undisturbed {QUIET_SECONDS:.1f} s", flush=True)
    run.check(took < seconds, f"took {took:.1f} s, undisturbed {QUIET_SECONDS:.1f} s")


# ---- failing files -----------------------------------------------------------------------------------

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long* count(void) {                /* shared with the test: how many calls were seen */
    static long* at;
    if (at == NULL) {
        int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, "open");
        int fd = real(getenv("FAULT_COUNT"), O_RDWR);
        at = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    return at;
}
static int ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return strstr(path, getenv("FAULT_PATH")) != NULL;
}
static int fails(void) {
    long at = __atomic_add_fetch(count(), 1, __ATOMIC_SEQ_CST);
    if (at != atol(getenv("FAULT_AT"))) return 0;
    errno = atoi(getenv("FAULT_ERRNO"));
    return 1;
}
#define ON_FD(result, name, parameters, arguments)                          \
    result name parameters {                                                \
        result (*real) parameters = dlsym(RTLD_NEXT, #name);                \
        if (ours(fd) && fails()) return -1;                                 \
        return real arguments;                                              \
    }
ON_FD(ssize_t, write, (int fd, const void* from, size_t n), (fd, from, n))
ON_FD(ssize_t, writev, (int fd, const struct iovec* parts, int n), (fd, parts, n))
ON_FD(ssize_t, pwrite, (int fd, const void* from, size_t n, off_t at), (fd, from, n, at))
ON_FD(ssize_t, pwrite64, (int fd, const void* from, size_t n, off64_t at), (fd, from, n, at))
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, fdatasync, (int fd), (fd))
ON_FD(int, ftruncate, (int fd, off_t length), (fd, length))
int rename(const char* from, const char* to) {
    int (*real)(const char*, const char*) = dlsym(RTLD_NEXT, "rename");
    if (strstr(to, getenv("FAULT_PATH")) != NULL && fails()) return -1;
    return real(from, to);
}
"""

ERRORS = {28: "no space", 5: "input/output"}    # ENOSPC, EIO


class Faults:
    """Makes the n-th call on a file below a folder fail, in one process."""

    def __init__(self, folder):
        self.folder = folder
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang-19")
        self.library = folder / "faults.so" if compiler else None
        if compiler:
            source = folder / "faults.c"
            source.write_text(SHIM)
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", source, "-o", self.library, "-ldl"], check=True)
        self.counter = folder / "calls"

    def environment(self, below, at, errno):
        self.counter.write_bytes(bytes(8))
        return dict(LD_PRELOAD=self.library, FAULT_COUNT=self.counter, FAULT_PATH=below, FAULT_AT=at, FAULT_ERRNO=errno)

    def calls(self):
        return int.from_bytes(self.counter.read_bytes(), sys.byteorder)


def failing_files(job, long):
    faults = Faults(job.folder)
    if faults.library is None:
        print("        no C compiler for the failing calls: left out")
        return
    more = ("--checkpoint-every", 4)

    def run(name, at, errno):
        return Run(job.arguments(name, *more, steps=12), **faults.environment(f"/runs/{name}", at, errno))

    with run("files", 0, 0) as quiet:
        quiet.check(quiet.wait() == 0, "the undisturbed run failed")
    calls, wanted = faults.calls(), job.curve("files")
    quiet_enough = calls > 20
    assert quiet_enough, f"only {calls} calls were seen"
    points = range(1, calls + 1) if long else [1 + k * (calls - 1) // 5 for k in range(6)]
    failed = 0
    for number, at in enumerate(points):
        for errno in ERRORS if long else [list(ERRORS)[number % 2]]:
            name = f"files-{at}-{errno}"
            what = f"(call {at} of {calls} fails with {ERRORS[errno]})"
            with run(name, at, errno) as hurt:
                code = hurt.wait(60)
                hurt.check(code in (0, 1, 2), f"exit code {code} {what}")
                named = ERRORS[errno] in hurt.stderr.lower() + hurt.stdout.lower()
                hurt.check(code == 0 or named, f"the cause is not named {what}")
                errors = [line for line in hurt.stderr.splitlines() if line.startswith("error")]
                hurt.check(len(errors) <= 1, f"{len(errors)} errors for one cause {what}")
                hurt.check_nothing_left()
                # What could not be written may be missing from the curve, but not without a word.
                hurt.check(code != 0 or job.curve(name) == wanted or named, f"a hole in the curve without a word {what}")
                failed += code != 0
            if code != 0 and (job.folder / "runs" / name / "checkpoints").is_dir():
                with Run(job.arguments(name, *more, "--resume", steps=12)) as again:
                    code = again.wait(60)
                    nothing = "no checkpoint" in again.stderr or "nothing to resume" in again.stderr
                    again.check(code == 0 or nothing, f"cannot be resumed, exit code {code} {what}")
                    again.check(nothing or job.curve(name) == wanted, f"another loss curve after --resume {what}")
            left = [path.name for path in (job.folder / "runs" / name).rglob("*") if path.name.endswith((".part", ".tmp"))]
            assert code != 0 or not left, f"files are left behind: {left} {what}"
            shutil.rmtree(job.folder / "runs" / name, ignore_errors=True)
    print(f"        {calls} calls; {len(points)} of them failed, {failed} of these ended the job", flush=True)


# ---- cases -------------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("only", nargs="?")
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("        without root the strangers are of our own user", flush=True)

    with tempfile.TemporaryDirectory() as folder_name:
        job = Job(pathlib.Path(folder_name))
        os.chmod(folder_name, 0o711)
        with Run(job.arguments("quiet", "--workers", 2)) as quiet:
            quiet.check(quiet.wait() == 0, "the undisturbed run failed")
            global QUIET_SECONDS
            QUIET_SECONDS = time.monotonic() - quiet.begin
        wanted = job.curve("quiet")
        slowest = 3 * QUIET_SECONDS + 8    # a round of handshakes that strangers fill costs 5 s
        recorded = []

        def words():
            """What a client with the token said to its server."""
            if not recorded:
                recorded.append(record(job, job.name()))
            return recorded[0]

        def world(name, body, *arguments, steps=STEPS, first_seconds=0.3):
            """Two ranks at a port that strangers are busy with before, while and after the ranks meet."""
            port = free_port()
            with strangers(body, port, *arguments), job.rank(name, 0, port, steps=steps) as first:
                first.wait_until(lambda: listens(port), "a listening rank 0", 60)
                time.sleep(first_seconds)    # the strangers come first
                with job.rank(name, 1, port, steps=steps) as second:
                    ends_well([first, second], job, name, wanted, "among strangers")
                    within(second, slowest)

        def idle_at_a_supervised_job():
            with strangers(stay_idle, sockets_of_jobs, 80):
                name = job.name()
                with Run(job.arguments(name, "--workers", 2)) as run:
                    ends_well([run], job, name, wanted, "with 80 idle connections")
                    within(run, slowest)

        def idle_at_the_rendezvous():
            world(job.name(), lambda port: stay_idle(lambda: [("127.0.0.1", port)], 250))

        def half():
            world(job.name(), half_handshakes, words(), 5000)

        def slow():
            world(job.name(), slow_bytes, words(), 70)

        def replayed():
            world(job.name(), replay_and_reflect, words())

        def wrong_token():
            port, name = free_port(), job.name()
            with job.rank(name, 0, port, SKEIN_TOKEN="11" * 32) as first:
                first.wait_until(lambda: listens(port), "a listening rank 0", 60)
                with job.rank(name, 1, port, SKEIN_TOKEN="22" * 32) as wrong:
                    code = wrong.wait(60)
                    wrong.check(code in (1, 2), f"exit code {code}")
                    wrong.check("token" in wrong.stderr, "the cause is not named")
                    wrong.check(wrong.stderr.count("error:") == 1, "not one error")
                with job.rank(name, 1, port, SKEIN_TOKEN="11" * 32) as right:
                    ends_well([first, right], job, name, wanted, "after a rank with a wrong token")

        def zero_token():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                try:
                    s.connect(("192.0.2.1", 9))    # sends nothing: which address would be ours
                    ours = s.getsockname()[0]
                except OSError:
                    ours = "127.0.0.1"
            if ours.startswith("127."):
                print("        this machine has no address but loopback: left out")
                return
            with job.rank(job.name(), 0, free_port(), SKEIN_TOKEN="0" * 64, MASTER_ADDR=ours, LOCAL_WORLD_SIZE=1, LOCAL_RANK=0) as run:
                code = run.wait(30)
                run.check(code in (1, 2), f"exit code {code}")
                run.check("token" in run.stderr.lower(), "the cause is not named")
                run.check_nothing_left()

        def no_descriptors():
            port, name = free_port(), job.name()
            more = ("--no-checkpoints", "--eval-every", 1000)
            plain = job.name()
            with Run(job.arguments(plain, "--workers", 2, *more, steps=400)) as run:
                run.check(run.wait() == 0, "the undisturbed run failed")
            with job.rank(name, 0, port, *more, steps=400) as first, job.rank(name, 1, port, *more, steps=400) as second:
                first.wait_until(lambda: job.curve(name).count(b"\n") > 5, "5 steps")
                in_use = len(os.listdir(f"/proc/{first.process.pid}/fd"))
                resource.prlimit(first.process.pid, resource.RLIMIT_NOFILE, (in_use + 8, in_use + 8))
                with strangers(lambda: stay_idle(lambda: [("127.0.0.1", port)], 80)):
                    code = first.wait(90)
                    if code == 0:
                        ends_well([first, second], job, name, job.curve(plain), "without free descriptors")
                        return
                # Its own files need descriptors too: then it may end, for that reason and no other.
                first.check(code == 1, f"exit code {code}")
                errors = [line for line in first.stderr.splitlines() if line.startswith("error")]
                first.check(len(errors) == 1 and "open files" in errors[0], "not one error that names the cause")
                second.check(second.wait(90) == 1 and "open files" in second.stderr, "the other rank does not name the cause")
                second.check_nothing_left()

        def damaged_bytes():
            program = find_program("skein_hostile_streams")
            with Run([program, "--flips", 1_000_000 if options.long else 20_000]) as run:
                code = run.wait(1500)
                print("".join(f"        {line}\n" for line in run.stdout.splitlines()), end="", flush=True)
                run.check(code == 0, f"exit code {code}")

        run_cases([
            ("80 idle connections of another user at a supervised job", idle_at_a_supervised_job),
            ("250 idle connections at the rendezvous", idle_at_the_rendezvous),
            ("5,000 half handshakes", half),
            ("slow bytes", slow),
            ("replayed and reflected handshakes", replayed),
            ("a wrong token", wrong_token),
            ("a token of zeros", zero_token),
            ("no free descriptors", no_descriptors),
            ("failing files", lambda: failing_files(job, options.long)),
            ("damaged bytes", damaged_bytes),
        ], options.only)


if __name__ == "__main__":
    main()

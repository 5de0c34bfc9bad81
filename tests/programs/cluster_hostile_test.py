#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile connections against the open doors of a cluster, its head and a driver, while calls go on.

    cluster_hostile_test.py [--connections N] [--at-once N] [--control]

They say nothing, send random bytes, stop within a handshake, know another token, replay what a peer with the token has
said, close one half, send a byte a second, or name huge lengths. Nothing may crash, calls give what they gave, and what
head and driver hold of all that is bounded and given back. Times are printed and not judged. A few hundred by default;
`--connections 10000` is the campaign.
"""
# label: runtime
import argparse
import errno
import hashlib
import hmac
import os
import pathlib
import random
import re
import resource
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import Cluster, listens_at, workers_of  # noqa: E402
from program import find_program, run_cases  # noqa: E402

SECONDS = 120.0
MOST_GROWTH = 64 << 20    # bytes of memory, of the head and of the driver
HELD = 4.0                # seconds for which a connection that is not dropped stays
HELLO, PROOF, VERDICT = 48, 36, 44


# ---- what hostile peers say ----------------------------------------------------------------------------

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


def sealed(said):
    return said + struct.pack("<I", crc32c(said))


def hello():
    """The token's own: kind and number of its key are 0."""
    return sealed(b"skein\r\n\0" + struct.pack("<HHHHQ", 5, 0, 1, 0, 0) + os.urandom(20))


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def proof(token, ours, theirs):
    return mac(token, b"skein/1 connecting side", ours, theirs)


def verdict(token, ours, theirs, block, length=None):
    """What a connecting side says when it knows the token; `length`: what it says of its identity instead."""
    session = mac(token, b"skein/1 session key.....", ours, theirs)
    head = struct.pack("<I", 0) + proof(token, ours, theirs) + struct.pack("<I", len(block) if length is None else length)
    return sealed(head) + block + mac(session, struct.pack("<B", 1), block)


def identity(purpose):
    """An identity as the handshake has it: name, build, registry, pid, host, purpose, no extra bytes, the token's name."""
    def text(words):
        return struct.pack("<B", len(words)) + words.encode()
    block = text("hostile") + struct.pack("<QQq", 0, 0, 1) + text("nowhere") + text(purpose) + b"\0"
    return block + b"\0" * (-len(block) % 8) + struct.pack("<HQ", 0, 0)


def frame_head(length, kind):
    head = struct.pack("<IHHQI", length, kind, 0, 1, 0)
    return head + struct.pack("<I", crc32c(head))


def receive(s, count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            raise ConnectionResetError
        got += more
    return got


def recorded(address, token):
    """What a peer that knows the token says from its first byte to its last one, to this server."""
    with socket.create_connection(address, SECONDS) as s:
        ours = hello()
        s.sendall(ours)
        theirs = receive(s, HELLO + PROOF)[:HELLO]
        said = verdict(token, ours, theirs, identity("cluster"))
        s.sendall(said)
        status = struct.unpack("<I", receive(s, VERDICT)[:4])[0]
        assert status == 0, f"the head refuses this test's own handshake: status {status}"
        return ours + said


class Peer:
    """One hostile connection. `begin` is said at once; `answer(what has come)` gives what is said then."""

    def __init__(self, kind, begin=b"", answer=None, half=False, slow=False):
        self.kind, self.left, self.answer, self.half, self.slow = kind, begin, answer, half, slow
        self.got, self.until, self.next = b"", time.monotonic() + HELD, 0.0


class Words:
    """Makes peers of all kinds, one after the other."""

    def __init__(self, token, replay):
        self.token, self.replay, self.random, self.made = token, replay, random.Random(1), 0
        self.kinds = [self.silent, self.noise, self.truncated, self.stranger, self.replayed, self.half_closed, self.slow,
                      self.huge_identity, self.huge_frame, self.lengths]

    def next(self):
        self.made += 1
        return self.kinds[self.made % len(self.kinds)]()

    def silent(self):
        return Peer("silent")

    def noise(self):
        return Peer("random bytes", self.random.randbytes(self.random.randrange(1, 4096)))

    def truncated(self):
        return Peer("truncated", hello()[:self.random.randrange(1, HELLO)], half=self.random.random() < 0.3)

    def stranger(self):
        ours, other = hello(), b"\x11" * 32
        return Peer("another token", ours, lambda got: verdict(other, ours, got[:HELLO], identity("cluster")))

    def replayed(self):
        return Peer("replayed", self.replay)

    def half_closed(self):
        return Peer("half closed", hello() if self.random.random() < 0.5 else b"", half=True)

    def slow(self):
        return Peer("slow", hello(), slow=True)

    def huge_identity(self):
        """It knows the token, and says that four gigabytes follow."""
        ours = hello()
        return Peer("huge identity", ours, lambda got: verdict(self.token, ours, got[:HELLO], b"x" * 1000, 0xFFFFFFF0))

    def huge_frame(self):
        """It knows the token, and its first frame says that it is large."""
        ours = hello()
        frame = frame_head(self.random.choice((0xFFFFFFF0, 1 << 30, (4 << 20) + 1)), 0xFE01)
        return Peer("huge frame", ours, lambda got: verdict(self.token, ours, got[:HELLO], identity("cluster")) + frame)

    def lengths(self):
        """Lengths where a stranger has nothing to say yet."""
        return Peer("huge lengths", hello() + b"\xff" * self.random.randrange(40, 2000))


# ---- the campaign ---------------------------------------------------------------------------------------

class Campaign:
    """Opens `count` connections to the addresses in turn, at most `at_once` at a time."""

    def __init__(self, addresses, words, count, at_once):
        self.addresses, self.words, self.count, self.at_once = addresses, words, count, at_once
        self.watched = selectors.DefaultSelector()
        self.peers, self.opened, self.failed, self.most = {}, 0, 0, 0
        self.by_kind, self.dropped = {}, 0

    def run(self):
        end = time.monotonic() + SECONDS + self.count / 20
        while self.opened < self.count or self.peers:
            assert time.monotonic() < end, f"{len(self.peers)} connections are left, {self.opened} opened"
            for _ in range(64):
                if self.opened < self.count and len(self.peers) < self.at_once:
                    self.open()
            self.most = max(self.most, len(self.peers))
            for key, events in self.watched.select(0.01):
                self.serve(key.fileobj, events)
            now = time.monotonic()
            for s, peer in list(self.peers.items()):
                if now > peer.until:
                    self.leave(s)
                elif peer.slow and now > peer.next:
                    peer.next = now + 1.0
                    self.say(s, peer)

    def open(self):
        family, address = self.addresses[self.opened % len(self.addresses)]
        s = socket.socket(family)
        s.setblocking(False)
        if family == socket.AF_INET:    # they come from many hosts
            s.bind((f"127.0.1.{1 + self.opened // len(self.addresses) % 32}", 0))
        peer = self.words.next()
        self.by_kind[peer.kind] = self.by_kind.get(peer.kind, 0) + 1
        self.opened += 1
        code = s.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self.failed += 1
            s.close()
            return
        self.peers[s] = peer
        self.watched.register(s, selectors.EVENT_READ | (0 if peer.slow else selectors.EVENT_WRITE), peer)

    def serve(self, s, events):
        peer = self.peers[s]
        if events & selectors.EVENT_READ:
            try:
                got = s.recv(65536)
            except BlockingIOError:
                got = None
            except OSError:
                got = b""
            if got == b"":
                self.dropped += 1
                self.leave(s)
                return
            peer.got += got or b""
            if peer.answer and len(peer.got) >= HELLO + PROOF:
                peer.left, peer.answer = peer.left + peer.answer(peer.got), None
                self.watched.modify(s, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        if events & selectors.EVENT_WRITE:
            self.say(s, peer)

    def say(self, s, peer):
        try:
            sent = s.send(peer.left[:1] if peer.slow else peer.left) if peer.left else 0
        except BlockingIOError:
            return
        except OSError:
            self.dropped += 1
            self.leave(s)
            return
        peer.left = peer.left[sent:]
        if peer.left or peer.slow:
            return
        self.watched.modify(s, selectors.EVENT_READ, peer)
        if peer.half:
            peer.half = False
            try:
                s.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def leave(self, s):
        self.watched.unregister(s)
        s.close()
        del self.peers[s]


# ---- what the cluster says to it --------------------------------------------------------------------------

def memory(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) << 10


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Gauge:
    """The most memory and descriptors that processes have while it runs."""

    def __init__(self, pids):
        self.pids, self.stop = pids, threading.Event()
        self.before = self.most = {name: (memory(pid), descriptors(pid)) for name, pid in pids.items()}
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.stop.wait(0.05):
            now = {name: (memory(pid), descriptors(pid)) for name, pid in self.pids.items()}
            self.most = {name: tuple(map(max, self.most[name], now[name])) for name in now}

    def end(self):
        self.stop.set()
        self.thread.join()


def percentiles(log, begin, end):
    """(calls, median, p99, most) in microseconds, of the calls that ended in between (monotonic seconds)."""
    took = sorted(int(t) / 1000 for at, t in (line.split() for line in log.read_text().splitlines() if line.count(" ") == 1)
                  if begin * 1e9 <= int(at) < end * 1e9)
    return (len(took), *(took[min(len(took) - 1, int(len(took) * p))] for p in (0.5, 0.99, 1.0))) if took else (0, 0, 0, 0)


def describe(name, log, begin, end):
    calls, median, p99, most = percentiles(log, begin, end)
    print(f"        {name}: {calls} calls in {end - begin:.1f} s, median {median:.0f} us, p99 {p99:.0f} us, longest {most / 1000:.1f} ms",
          flush=True)
    return calls


def family_of(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


BYSTANDER = """
import selectors, socket, sys, time
door = socket.create_server(("127.0.0.1", 0), backlog=4096)
door.setblocking(False)
print(door.getsockname()[1], flush=True)
watched, until = selectors.DefaultSelector(), {}
watched.register(door, selectors.EVENT_READ)
while True:
    for key, _ in watched.select(0.1):
        if key.fileobj is door:
            s, _ = door.accept()
            s.setblocking(False)
            watched.register(s, selectors.EVENT_READ)
            until[s] = time.monotonic() + 1
        else:
            try:
                if not key.fileobj.recv(65536):
                    until[key.fileobj] = 0
            except OSError:
                until[key.fileobj] = 0
    now = time.monotonic()
    for s in [s for s, end in until.items() if end < now]:
        watched.unregister(s)
        s.close()
        del until[s]
"""


def beside_a_bystander(words, count, at_once):
    """The same connections to a process that has nothing to do with the cluster: what they cost on this machine alone."""
    with subprocess.Popen([sys.executable, "-c", BYSTANDER], stdout=subprocess.PIPE, text=True) as other:
        try:
            Campaign([(socket.AF_INET, ("127.0.0.1", int(other.stdout.readline())))], words, count, at_once).run()
        finally:
            other.kill()


def hostile(count, at_once, has_control=False):
    with Cluster([("a", ["--resources", "cpu=1"])]) as c:
        token = bytes.fromhex((c.folder / "config" / "skein" / "token").read_text().strip())
        log, stop = c.cwd / "log", c.cwd / "stop"
        driver = c.program("skein_call_times", log, stop)
        driver.wait_until(lambda: log.exists() and log.read_text().count("\n") > 2000, "calls", SECONDS)
        pids = {"head": c.head.process.pid, "driver": driver.process.pid}
        doors = [(family_of(host), (host, port)) for pid in pids.values() for host, port in listens_at(pid)]
        assert len(doors) == 2, f"the head and the driver listen at {doors}"
        head_door = doors[0][1]
        words = Words(token, recorded(head_door, token))
        begin = time.monotonic()
        driver.wait_until(lambda: percentiles(log, begin, time.monotonic())[0] > 2000 and time.monotonic() > begin + 1, "more calls", SECONDS)
        quiet = time.monotonic()
        describe("before", log, begin, quiet)
        if has_control:
            beside_a_bystander(words, count, at_once)
            describe("while a bystander has them", log, quiet, time.monotonic())
        gauge = Gauge(pids)
        quiet = time.monotonic()
        campaign = Campaign(doors, words, count, at_once)
        try:
            campaign.run()
        finally:
            gauge.end()
        ended = time.monotonic()
        print(f"        {campaign.opened} connections ({', '.join(f'{n} {kind}' for kind, n in sorted(campaign.by_kind.items()))}), "
              f"at most {campaign.most} at a time, {campaign.dropped} dropped by the other side, {campaign.failed} not accepted", flush=True)
        calls = describe("meanwhile", log, quiet, ended)
        driver.check(calls > 0, "no call ended meanwhile")
        for run in (c.head, driver, c.nodes["a"]):
            run.check(run.process.poll() is None, "it has ended")
        for name, pid in pids.items():
            c.wait_until(lambda name=name, pid=pid: descriptors(pid) <= gauge.before[name][1], f"descriptors given back by the {name}")
            grown, left = gauge.most[name][0] - gauge.before[name][0], memory(pid) - gauge.before[name][0]
            print(f"        {name}: {gauge.before[name][0] >> 10} KiB before, at most {grown >> 10} KiB more meanwhile, "
                  f"{left >> 10} KiB more after; at most {gauge.most[name][1]} descriptors", flush=True)
            assert grown <= MOST_GROWTH, f"the {name} has grown by {grown} bytes"
        assert c.status()["nodes"][0]["workers"] == 1 and len(workers_of(c.nodes["a"])) == 1, c.status()
        after = time.monotonic()
        driver.wait_until(lambda: percentiles(log, after, time.monotonic())[0] > 2000, "calls afterwards", SECONDS)
        describe("after", log, after, time.monotonic())
        stop.write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout.endswith(" calls\n"), "it failed")
        c.head.check("lost" not in c.head.stderr, "a node was lost")
        log.unlink()
        stop.unlink()
        c.stop()


def main():
    parser = argparse.ArgumentParser(description="hostile connections against a head and a driver")
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--control", action="store_true", help="first the same against a process that has nothing to do with the cluster")
    given = parser.parse_args()
    if "ASAN_OPTIONS" in os.environ:    # what was freed and is kept by ASan is not the program's growth
        os.environ["ASAN_OPTIONS"] += ":quarantine_size_mb=4"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, given.at_once + 1000)), hard))
    run_cases([(f"{given.connections} hostile connections", lambda: hostile(given.connections, given.at_once, given.control))])


if __name__ == "__main__":
    main()

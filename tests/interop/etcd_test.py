#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A register of views in a real etcd, which is started here, killed, filled, cut off from its users, and gone in the end.

    etcd_test.py [NAME]        SKEIN_ETCD_AWAY=60: for how long it is away in that case (seconds, 6 otherwise)
"""
# label: runtime
import base64
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "programs"))
from program import Run, environment, find_program, free_port, run_cases, skip  # noqa: E402

SECONDS = 60.0
AWAY = float(os.environ.get("SKEIN_ETCD_AWAY", "6"))


def skip_without_tools():
    missing = [tool for tool in ("etcd", "openssl") if not shutil.which(tool)]
    if missing:
        skip(f"{' and '.join(missing)} not installed (packages etcd-server, openssl)")


def text64(text):
    return base64.b64encode(text.encode()).decode()


class Refused(AssertionError):
    """What etcd says to the test itself."""


class Etcd:
    """One member. Ports stay through restarts, so they are chosen before it starts."""

    def __init__(self, folder, name="a", scheme="http", more=(), at="127.0.0.1"):
        self.folder, self.name, self.more = pathlib.Path(folder), name, list(more)
        self.client = f"{scheme}://{at}:{free_port()}"
        self.peer = f"http://127.0.0.1:{free_port()}"
        self.cluster = f"{name}={self.peer}"
        self.process = None
        self.log = self.folder / f"{name}.log"

    def start(self, wait=True):
        config = self.folder / f"{self.name}.yml"
        lines = {"name": self.name, "data-dir": self.folder / f"{self.name}.data", "listen-client-urls": self.client, "advertise-client-urls": self.client,
                 "listen-peer-urls": self.peer, "initial-advertise-peer-urls": self.peer, "initial-cluster": self.cluster,
                 "enable-grpc-gateway": "true", "unsafe-no-fsync": "true", "bcrypt-cost": 4}
        for line in self.more:
            key, value = line.split(": ", 1)
            lines[key] = value
        config.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["etcd", "--config-file", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment(), start_new_session=True)
        if wait:
            self.wait()
        return self

    def wait(self):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            if "serving " in self.log.read_text() and (not self.client.startswith("http:") or self.is_ready()):
                return
            time.sleep(0.02)
        raise AssertionError("etcd does not start\n" + self.log.read_text()[-2000:])

    def is_ready(self):
        try:
            with urllib.request.urlopen(self.client + "/health", timeout=2) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, ValueError):
            return False

    def end(self, how=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(SECONDS)

    def call(self, path, token="", **body):
        request = urllib.request.Request(self.client + path, json.dumps(body).encode(), {"Authorization": token} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise Refused(f"{path}: {refused.code} {refused.read().decode()}") from None

    def put(self, key, value):
        return int(self.call("/v3/kv/put", key=text64(key), value=text64(value))["header"]["revision"])

    def compact(self):
        revision = int(self.call("/v3/kv/range", key=text64("x"))["header"]["revision"])
        self.call("/v3/kv/compaction", revision=revision, physical=True)


class Cluster:
    """A folder, and the members in it; none of them is left."""

    def __init__(self, names=("a",), **how):
        self.names, self.how = names, how

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="skein-etcd-")
        self.members = [Etcd(self.folder.name, name, **self.how) for name in self.names]
        whole = ",".join(member.cluster for member in self.members)
        for member in self.members:
            member.cluster = whole
        try:
            for member in self.members:
                member.start(wait=False)
            for member in self.members:
                member.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.end(signal.SIGKILL)
        self.folder.cleanup()

    def leader(self):
        for member in self.members:
            status = member.call("/v3/maintenance/status")
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("there is no leader")


class Supervisor(Run):
    """skein_etcd_views at members: lines that it says."""

    def __init__(self, members, *words):
        endpoints = [f"endpoint={member.client}" for member in members]
        self.members = list(members)
        super().__init__([find_program("skein_etcd_views"), *endpoints, *words], SKEIN_LOG_LEVEL="debug")

    def lines(self, first):
        return [line.split(" ", 1)[1] for line in self.stdout.splitlines() if line.startswith(first + " ")]

    def fail(self, what):
        """With what etcd holds, which may be what it waits for: of the first member that answers at all."""
        held = "nothing is heard of etcd"
        for member in self.members:
            try:
                found = member.call("/v3/kv/range", key=text64("/"), range_end=text64("0"))
            except (OSError, Refused) as why:
                held = f"{held}; {member.name}: {why}"
                continue
            values = [f"{base64.b64decode(kv['key']).decode()} ({kv['mod_revision']}): {base64.b64decode(kv['value'])[:200]}" for kv in found.get("kvs", [])]
            held = f"etcd holds at revision {found['header']['revision']}: {values}"
            break
        super().fail(f"{what}\n{held}")

    def expect(self, line, seconds=SECONDS):
        """How long it took until it said this."""
        begin = time.monotonic()
        self.wait_until(lambda: line in self.stdout.splitlines(), f"'{line}'", seconds)
        return time.monotonic() - begin

    def expect_end(self, seconds=SECONDS):
        code = self.wait(seconds)
        self.check(code == 0, f"ended with {code}")
        return self.stdout.splitlines()

    def expect_error(self, code, *parts, seconds=SECONDS):
        self.check(self.wait(seconds) == 1, f"ended with {self.process.returncode}")
        said = self.lines("error")
        self.check(len(said) == 1 and said[0].startswith(code + " "), f"no error {code}")
        for part in parts:
            self.check(part in said[0], f"no '{part}' in the error")

    def logged(self, text):
        return len(re.findall(re.escape(text), self.stderr))


def swap_to(members, author, last, *more):
    with Supervisor(members, *more, "swap", author, last) as run:
        run.expect_end()


def a_chain_of_two():
    with Cluster() as etcd:
        last = 120
        with Supervisor(etcd.members, "swap", 1, last) as one, Supervisor(etcd.members, "swap", 2, last) as two:
            one.expect_end(), two.expect_end()
            made = one.lines("swapped") + two.lines("swapped")
            one.check(sorted(map(int, made)) == list(range(1, last + 1)), "a generation is missing, or was swapped in twice")


def a_restart():
    with Cluster() as etcd, Supervisor(etcd.members, "watch", 0, 4) as watch:
        member = etcd.members[0]
        swap_to(etcd.members, 1, 2)
        watch.expect("view 2 1")
        member.end()
        member.start()
        swap_to(etcd.members, 1, 3)
        watch.expect("view 3 1")
        member.end(signal.SIGKILL)
        member.start()
        swap_to(etcd.members, 1, 4)
        watch.expect_end()
        watch.check(watch.logged("does not answer") <= 2, "an outage was logged more than once")


def a_kill_in_the_midst():
    with Cluster(more=["unsafe-no-fsync: false"]) as etcd:
        last, member = 400, etcd.members[0]
        with Supervisor(etcd.members, "swap", 1, last) as one, Supervisor(etcd.members, "swap", 2, last) as two:
            for at in (40, 160, 280):
                one.wait_until(lambda at=at: len(one.lines("swapped")) + len(two.lines("swapped")) >= at, f"generation {at}")
                member.end(signal.SIGKILL)
                member.start()
            one.expect_end(), two.expect_end()
            made = one.lines("swapped") + two.lines("swapped")
            one.check(sorted(map(int, made)) == list(range(1, last + 1)), "a generation is missing, or was swapped in twice")


def compactions():
    with Cluster() as etcd, Supervisor(etcd.members, "watch", 0, 60) as watch:
        swap_to(etcd.members, 1, 20)
        watch.expect("view 20 1")
        etcd.members[0].compact()
        os.kill(watch.process.pid, signal.SIGSTOP)
        swap_to(etcd.members, 1, 59)
        etcd.members[0].compact()
        os.kill(watch.process.pid, signal.SIGCONT)
        watch.expect("view 59 1")
        swap_to(etcd.members, 1, 60)
        watch.expect_end()


def a_leader_is_killed():
    with Cluster(("a", "b", "c")) as etcd:
        leader = etcd.leader()
        ordered = sorted(etcd.members, key=lambda member: member is not leader)   # it is the one that is asked
        with Supervisor(ordered, "watch", 0, 10) as watch, Supervisor(ordered, "claim", 7) as holder:
            swap_to(ordered, 1, 9)
            watch.expect("view 9 1")
            holder.expect("coordinator 7")
            begin = time.monotonic()
            leader.end(signal.SIGKILL)
            swap_to(ordered, 1, 10)
            swapped = time.monotonic() - begin
            watch.expect_end()
            seen = time.monotonic() - begin
            print(f"        swapped {swapped:.2f} s, seen {seen:.2f} s after the leader was killed")
            watch.check(seen < 15.0, f"the change was seen only after {seen:.1f} s")
            with Supervisor(ordered, "claim", 8) as late:
                late.expect("coordinator 7")
            # The one that is back serves, too, and those who are left may go.
            leader.start()


def a_member_falls_silent():
    """Stopped it keeps its connections, and says nothing."""
    with Cluster(("a", "b", "c")) as etcd:
        silent = etcd.leader()
        ordered = sorted(etcd.members, key=lambda member: member is not silent)
        with Supervisor(ordered, "timeout=1", "watch", 0, 2) as watch, Supervisor(ordered, "timeout=1", "claim", 7) as holder:
            swap_to(ordered, 1, 1)
            watch.expect("view 1 1")
            holder.expect("coordinator 7")
            begin = time.monotonic()
            silent.process.send_signal(signal.SIGSTOP)
            swap_to(ordered, 1, 2, "timeout=1")
            watch.expect_end()
            print(f"        seen {time.monotonic() - begin:.2f} s after the leader fell silent")
            with Supervisor(ordered[1:], "claim", 8) as late:
                late.expect("coordinator 7")


def away_and_back():
    with Cluster() as etcd, Supervisor(etcd.members, "watch", 0, 2) as watch, Supervisor(etcd.members, "claim", 7) as holder:
        member = etcd.members[0]
        swap_to(etcd.members, 1, 1)
        watch.expect("view 1 1")
        holder.expect("coordinator 7")
        member.end(signal.SIGKILL)
        with Supervisor(etcd.members, "swap", 1, 2) as swap:
            time.sleep(AWAY)   # what is tested is that length
            watch.check(watch.process.poll() is None, "it did not wait")
            member.start()
            swap.expect_end()
            for run in (swap, watch):
                run.expect_end()
                run.check(run.logged("does not answer") == 1, "the outage was not logged once")
                run.check(run.logged("answers again") == 1, "its end was not logged once")
        # A member that starts gives leases their time anew.
        with Supervisor(etcd.members, "claim", 8) as late:
            late.expect("coordinator 7")
        holder.check(holder.lines("coordinator") == ["7"], "the place was lost")


def places():
    with Cluster() as etcd, Supervisor(etcd.members, "ttl=2", "claim", 1) as first:
        first.expect("coordinator 1")
        with Supervisor(etcd.members, "ttl=2", "claim", 2) as second:
            second.expect("coordinator 1")
        # Stopped for longer than its lease: the others are told, another takes the place, and it hears of that.
        with Supervisor(etcd.members, "follow", 1) as follow:
            follow.expect("following")
            os.kill(first.process.pid, signal.SIGSTOP)
            took = follow.expect("coordinator 0")
            print(f"        a lease of 2 s was over {took:.2f} s after its holder was stopped")
        with Supervisor(etcd.members, "ttl=2", "claim", 2) as second:
            second.expect("coordinator 2")
            os.kill(first.process.pid, signal.SIGCONT)
            first.expect_end()
            first.check(first.lines("coordinator")[1:] in (["0"], ["2"]), "it was not told")
            with Supervisor(etcd.members, "follow", 2) as follow:
                follow.expect("following")
                second.process.send_signal(signal.SIGKILL)
                follow.expect("coordinator 0")
        # It holds the place for as long as the other may need to look: a place that was taken and given back before is no news.
        with Supervisor(etcd.members, "ttl=2", "claim", 3) as third:
            with Supervisor(etcd.members, "follow", 0) as follow:
                follow.expect("coordinator 3")
            with Supervisor(etcd.members, "follow", 3) as follow:
                follow.expect("following")
                third.process.send_signal(signal.SIGKILL)
                follow.expect("coordinator 0")
        with Supervisor(etcd.members, "ttl=600", "resign", 5) as fifth:    # a lease that nobody here waits for
            fifth.expect_end()
        with Supervisor(etcd.members, "claim", 4) as fourth:
            fourth.expect("coordinator 4")


def prefixes():
    with Cluster() as etcd:
        swap_to(etcd.members, 1, 5)
        swap_to(etcd.members, 1, 3, "prefix=/team/a")
        swap_to(etcd.members, 1, 2, "job=another")
        for more, last in (([], 5), (["prefix=/team/a/"], 3), (["job=another"], 2), (["prefix=/team"], 0)):
            with Supervisor(etcd.members, *more, "read") as read:
                read.check(read.expect_end()[0].split()[1] == str(last), f"not generation {last}")
        etcd.members[0].put("/skein/taken/view", "10.0.0.1:29500")
        with Supervisor(etcd.members, "job=taken", "read") as read:
            read.expect_error("mismatch", "/skein/taken/view", "another program writes there", etcd.members[0].client)


def make_certificates(folder):
    """A CA, etcd's certificate for 127.0.0.1, a client's with a common name, and a CA that signed nothing."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    for ca in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem",
                "-subj", f"/CN={ca}", "-days", "2")
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (pathlib.Path(folder) / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2",
                "-extfile", f"{name}.ext")


def certificates():
    with tempfile.TemporaryDirectory(prefix="skein-etcd-") as folder:
        make_certificates(folder)
        files = [f"ca={folder}/ca.pem"]
        client = [f"cert={folder}/client.pem", f"key={folder}/client.key"]
        served = f"client-transport-security: {{cert-file: {folder}/server.pem, key-file: {folder}/server.key"
        with Cluster(scheme="https", more=[served + "}"]) as etcd:
            swap_to(etcd.members, 1, 3, *files)
            with Supervisor(etcd.members, f"ca={folder}/other.pem", "read") as read:
                read.expect_error("mismatch", etcd.members[0].client, "ca, cert and key", seconds=10)
            with Supervisor(etcd.members, "read") as read:   # the system's CAs
                read.expect_error("mismatch", "ca, cert and key", seconds=10)
            etcd.members[0].client = etcd.members[0].client.replace("https", "http")
            with Supervisor(etcd.members, "read") as read:   # it breaks connections off, as one that ends does
                read.wait_until(lambda: read.logged("its endpoint begins with https://"), "a hint")
            with Supervisor(etcd.members, f"ca={folder}/missing.pem", "read") as read:
                read.expect_error("not_found", "missing.pem", "option ca")
        asked = f", client-cert-auth: true, trusted-ca-file: {folder}/ca.pem}}"
        with Cluster(scheme="https", more=[served + asked]) as etcd:
            swap_to(etcd.members, 1, 3, *files, *client)
            with Supervisor(etcd.members, *files, "read") as read:
                read.expect_error("mismatch", "ca, cert and key", seconds=10)
        with Cluster() as etcd:   # without TLS
            etcd.members[0].client = etcd.members[0].client.replace("http", "https")
            with Supervisor(etcd.members, *files, "read") as read:
                read.wait_until(lambda: read.logged("its endpoint begins with http://"), "a hint")


def no_gateway():
    with Cluster(more=["enable-grpc-gateway: false"]) as etcd:
        with Supervisor(etcd.members, "read") as read:
            read.expect_error("not_supported", "gateway", "enable-grpc-gateway: true", etcd.members[0].client, seconds=10)


def users():
    with Cluster() as etcd:
        member = etcd.members[0]
        swap_to(etcd.members, 1, 1, "user=skein", "password=secret")   # who has no users takes none
        member.call("/v3/auth/user/add", name="root", password="root")
        member.call("/v3/auth/role/add", name="root")
        member.call("/v3/auth/user/grant", user="root", role="root")
        member.call("/v3/auth/user/add", name="skein", password="secret")
        member.call("/v3/auth/role/add", name="skein")
        member.call("/v3/auth/role/grant", name="skein",
                    perm={"permType": "READWRITE", "key": text64("/skein/"), "range_end": text64("/skein0")})
        member.call("/v3/auth/user/grant", user="skein", role="skein")
        known = ["user=skein", "password=secret"]
        with Supervisor(etcd.members, *known, "watch", 1, 4) as watch, Supervisor(etcd.members, *known, "claim", 7) as holder:
            member.call("/v3/auth/enable")
            swap_to(etcd.members, 1, 2, *known)
            watch.expect("view 2 1")
            holder.expect("coordinator 7")
            member.end(signal.SIGKILL)   # it forgets the tokens that it gave
            member.start()
            swap_to(etcd.members, 1, 3, *known)
            watch.expect("view 3 1")
            token = member.call("/v3/auth/authenticate", name="root", password="root")["token"]
            member.call("/v3/auth/role/add", token, name="more")   # tokens of before are too old now
            swap_to(etcd.members, 1, 4, *known)
            watch.expect_end()
            for more, what in ((["user=skein", "password=wrong"], "check the options user and password"), ([], "this etcd has users"),
                               ([*known, "prefix=/other"], "reads and writes /other/")):
                for words in (["read"], ["watch", "0", "9"], ["swap", "1", "9"], ["claim", "9"]):
                    with Supervisor(etcd.members, *more, *words) as run:
                        run.expect_error("permission_denied", what, member.client, seconds=10)
            holder.check(holder.lines("coordinator") == ["7"], "the place was lost")


def a_full_one():
    quota = 400_000
    with Cluster(more=[f"quota-backend-bytes: {quota}"]) as etcd, Supervisor(etcd.members, "watch", 0, 2) as watch:
        member = etcd.members[0]
        swap_to(etcd.members, 1, 1)
        watch.expect("view 1 1")
        try:
            for number in range(1000):
                member.put(f"/fill/{number % 3}", "x" * 10_000)
            raise AssertionError("it is not full")
        except Refused as full:
            assert "database space exceeded" in str(full), full
        with Supervisor(etcd.members, "read") as read:
            read.expect_end()
        with Supervisor(etcd.members, "swap", 1, 2) as swap:
            swap.wait_until(lambda: swap.logged("is full"), "a word about it")
            swap.check(swap.logged("NOSPACE") == 1 and swap.logged("does not answer") == 0, "it was called something else")
            member.compact()
            member.call("/v3/maintenance/defragment")
            for alarm in member.call("/v3/maintenance/alarm")["alarms"]:
                member.call("/v3/maintenance/alarm", action="DEACTIVATE", alarm="NOSPACE", memberID=alarm["memberID"])
            swap.expect_end()
            swap.check(swap.logged("has space again") == 1, "nothing was said of its end")
        watch.expect_end()


def main():
    skip_without_tools()
    find_program("skein_etcd_views")
    run_cases([(case.__name__, case) for case in (a_chain_of_two, a_restart, a_kill_in_the_midst, compactions, a_leader_is_killed, a_member_falls_silent, away_and_back, places,
                                                  prefixes, certificates, no_gateway, users, a_full_one)], sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

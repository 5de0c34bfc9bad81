#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad days of a cluster of real processes: what its operators meet in the first week.

    bad_days_test.py [NAME]

By events: output lines, ends of processes, and what `skein status` and `skein job status` say.
"""
# label: runtime
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from http_api_test import Api  # noqa: E402
from jobs_test import SECONDS, Jobs, ask  # noqa: E402
from program import Run, find_program, free_port, run_cases  # noqa: E402

# ---- nodes that are silent, heads that come back -------------------------------------------------


@contextlib.contextmanager
def standing_still(run):
    """A process that is stopped, with its threads; what it has started goes on."""
    os.kill(run.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(run.process.pid, signal.SIGCONT)


def until_running(c, name, text):
    watching = c.start("--id", name, "--", "sh", "-c", text)
    watching.wait_until(lambda: "RUNNING" in watching.stderr, "a job that runs", SECONDS)
    return watching


def stopped_agent():
    """An agent that says nothing for 8 s, as on a busy or paused host, keeps its job; status says how long it is away."""
    with Jobs([("n1", [])]) as c:
        watching = until_running(c, "long", "echo on; while ! [ -e go ]; do sleep 0.1; done; echo done")
        with standing_still(c.nodes["n1"]):
            began = time.monotonic()    # the time that has to pass
            c.wait_until(lambda: (n := c.node("n1")) and n["silent_ms"] >= 7000, "a node that is silent for 7 s")
            now = c.info("long")
            assert now["state"] == "RUNNING" and "node n1 is silent for " in now["reason"], now
            assert "given up at 30 s" in now["reason"], now
            text = c.tool("status", c.address)[1]
            assert "away for " in text and "given up at 30 s" in text, text
            c.wait_until(lambda: time.monotonic() - began >= 8, "8 s")
        c.wait_until(lambda: (n := c.node("n1")) and not n["suspect"] and n["silent_ms"] == 0, "a node that is heard")
        now = c.info("long")
        assert now["state"] == "RUNNING" and now["attempt"] == 1 and now["reason"] == "", now
        (folder,) = (c.folder / "home/.cache/skein").glob("node-*/jobs/long-*")
        (folder / "go").touch()
        watching.check(watching.wait(SECONDS) == 0 and watching.stdout == "on\ndone\n", "it is another attempt, or lost lines")
        assert c.status()["lost_after_ms"] == 30_000
        c.stop()


def lost_after():
    """With --lost-after 3s a node that is silent for longer is lost, its job has failed and says so; its process ends when the agent is back."""
    with Jobs([("n1", [])], head=["--lost-after", "3s"]) as c:
        assert c.status()["lost_after_ms"] == 3000
        watching = until_running(c, "goes", "echo $$; exec sleep 1000")
        watching.wait_until(lambda: watching.stdout.endswith("\n"), "its process", SECONDS)
        pid = int(watching.stdout)
        with standing_still(c.nodes["n1"]):
            watching.check(watching.wait(SECONDS) == 1, "it has not failed")
            reason = c.info("goes")["reason"]
            assert "node n1 was lost: it was silent for 3" in reason, reason
            os.kill(pid, 0)    # nobody could tell it
        c.wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the end of what was given up")
        c.wait_until(lambda: (n := c.node("n1")) and not n["suspect"], "a node that is back")
        assert c.job("submit", "--", "echo", "again")[0] == "again\n"
        for wrong in ("0", "1d", "-5s", "200h", "x"):
            code, _, err = c.tool("head", "--listen", "127.0.0.1:0", "--lost-after", wrong)
            assert code == 2 and "--lost-after" in err[-1], (wrong, code, err)
        c.stop()


def poison():
    """A job without retries that takes its agent down as it starts has had its attempt: one try, one agent."""
    with Jobs([("n1", []), ("n2", []), ("n3", [])]) as c:
        notes = c.cwd / "notes"
        for text in (f"kill -9 $PPID; echo $SKEIN_JOB_ATTEMPT >> {notes}; exec sleep 100",
                     f"echo $SKEIN_JOB_ATTEMPT >> {notes}; kill -9 $PPID; exec sleep 100"):
            notes.write_text("")
            out, err = c.job("submit", "--", "sh", "-c", text, code=1)
            assert "FAILED" in err[-1] and "was lost" in err[-1], err
            dead = [name for name, node in c.nodes.items() if node.process.poll() is not None]
            assert len(dead) == 1, f"agents that died: {dead}"
            assert notes.read_text() in ("", "1\n"), notes.read_text()
            c.nodes.pop(dead[0])
        c.stop()


def heads_that_come_back():
    """kill -9 of a head again and again: when its nodes are back, no job is on its way in a process that is not there."""
    with Jobs(state=True) as c:
        for i in range(4):
            started = [c.run(c.skein, "job", "submit", "--address", c.address, "--no-wait", "--id", f"r{i}.{k}", "--",
                             "sh", "-c", "echo 1; sleep 1; echo 2") for k in range(6)]
            started[i % 6].wait_until(lambda: started[i % 6].stdout, "an id", SECONDS)
            c.head.process.kill()
            c.head.process.wait()
            c.start_head(c.address)
            for one in started:    # each has waited for the next head
                one.check(one.wait(SECONDS) == 0, "it was not submitted")
        c.wait_until(lambda: len(c.status()["nodes"]) == 2, "nodes that are back")

        def on_their_way():
            names = [f"r{i}.{k}" for i in range(4) for k in range(6)]
            return [(n, c.info(n)["state"]) for n in names if c.info(n)["state"] not in ("SUCCEEDED", "FAILED")]
        c.wait_until(lambda: not on_their_way(), "jobs that have ended")
        for i in range(4):
            for k in range(6):
                now = c.info(f"r{i}.{k}")
                assert now["state"] == "SUCCEEDED" and now["attempt"] <= 1 + now["not_counted"], now
        c.stop()


def followed_over_heads():
    """Who follows a job over two heads gets each line once, also those that only the first one had."""
    with Jobs([("n1", [])], state=True) as c:
        watching = c.start("--id", "lines", "--", "sh", "-c", "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.02; done")
        for wanted in (50, 150, 250):
            watching.wait_until(lambda wanted=wanted: watching.stdout.count("\n") >= wanted, f"{wanted} lines", SECONDS)
            c.head.process.kill()
            c.head.process.wait()
            c.start_head(c.address)
        watching.check(watching.wait(SECONDS) == 0, "it has failed")
        watching.check(watching.stdout == "".join(f"{i}\n" for i in range(1, 401)), "lines are missing, or there twice")
        c.stop()


def no_head_for_a_while():
    """skein job waits for a head that does not answer, and says so; a submit that was cut off is made once."""
    with Jobs([("n1", [])], state=True) as c:
        c.head.process.kill()
        c.head.process.wait()
        waiting = [c.run(c.skein, "job", "submit", "--address", c.address, "--", "echo", "there"),
                   c.run(c.skein, "job", "list", "--address", c.address)]
        for one in waiting:
            one.wait_until(lambda one=one: "no head answers at" in one.stderr and "for 10 s" in one.stderr, "a line that it waits", SECONDS)
        c.start_head(c.address)
        for one in waiting:
            one.check(one.wait(SECONDS) == 0, "it did not wait")
        assert waiting[0].stdout == "there\n", waiting[0].stdout
        c.wait_until(lambda: c.job("list")[0].count("SUCCEEDED") == 1, "one job")
        c.stop()
        code, _, err = c.tool("job", "list", "--address", c.address)
        assert code == 3 and "no head answers" in err[0] and "no cluster at" in err[-1], (code, err)


# ---- nodes that cannot start anything, jobs that wait for each other -----------------------------


def submit_all(c, names, *words):
    runs = [c.start("--id", name, *words) for name in names]
    return [run.wait(SECONDS) for run in runs]


def swallows_nothing(c, broken):
    """What `broken` cannot start runs elsewhere, all of it, and is no attempt."""
    for retries in ("0", "2"):
        names = [f"many-{retries}-{i}" for i in range(10)]
        codes = submit_all(c, names, "--retries", retries, "--", "sh", "-c", "sleep 0.3; echo ok")
        assert codes == [0] * 10, (retries, codes)
        assert {(c.info(name)["attempt"], c.info(name)["node"]) for name in names} == {(1, "good")}
    for i in range(10):    # one after the other: the emptiest node is asked first
        c.job("submit", "--id", f"one-{i}", "--", "true")
    assert all(c.info(f"one-{i}")["node"] == "good" for i in range(10))
    assert c.info("one-9")["attempt"] == 1
    c.job("submit", "--id", "other", "--on", f"node={broken}", "--no-wait", "--", "true")
    now = c.wait_until(lambda: (n := c.node(broken)) and n["rests_s"] and n, f"{broken} that rests")
    code, out, err = c.tool("status", c.address)
    assert code == 0 and (f"{broken} resting" in out or not c.node(broken)["rests_s"]), (out, err)
    assert c.info("other")["state"] in ("PENDING", "STARTING"), c.info("other")
    return now


@contextlib.contextmanager
def blocked_keys(folder):
    """A folder in which no key of an attempt can be written, not even by root: its place is mounted for reading. Gives what mends that; None: left out."""
    keys = folder / "keys"
    keys.mkdir(parents=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", keys], stderr=subprocess.DEVNULL).returncode != 0:
        print("        left out: a folder that even root cannot write needs root, and mounts")
        yield None
        return

    def mend():
        subprocess.run(["umount", "-l", keys], stderr=subprocess.DEVNULL)
    try:
        yield mend
    finally:
        mend()


def a_node_that_cannot_write():
    """A node that cannot write keys takes no job from a good one; once it can it is used."""
    with Jobs([]) as c, blocked_keys(c.folder / "broken") as mend:
        if mend is None:
            return c.stop()
        c.join("broken", "--resources", "cpu=4", "--storage", c.folder / "broken")
        c.join("good", "--resources", "cpu=4")
        c.joined("broken")
        c.joined("good")
        now = swallows_nothing(c, "broken")
        assert "cannot be written: read-only file system" in now["rests_for"], now
        why = c.wait_until(lambda: (i := c.info("other"))["state"] == "PENDING" and i["reason"], "a reason")
        assert "broken" in why and "cannot be written" in why, why
        mend()
        c.until("other", "SUCCEEDED")
        c.wait_until(lambda: c.node("broken")["rests_s"] is None, "a node that rests no more")
        c.stop()


def with_a_disk(what, breaks, wanted):
    """A node with a small disk of its own, which root alone can make."""
    with Jobs([]) as c:
        disk = c.folder / "disk"
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], stderr=subprocess.DEVNULL).returncode != 0:
            print(f"        left out: {what} needs root")
            return
        try:
            c.join("broken", "--resources", "cpu=4", "--storage", disk / "s")
            c.join("good", "--resources", "cpu=4")
            c.joined("broken")
            c.joined("good")
            breaks(c, disk)
            now = swallows_nothing(c, "broken")
            assert wanted in now["rests_for"].lower(), now
            c.job("stop", "other")
            c.stop()
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


def a_node_whose_disk_is_full():
    """The same of a disk without room."""
    def fill(_, disk):
        with open(disk / "fill", "wb", buffering=0) as into, contextlib.suppress(OSError):
            while True:
                into.write(bytes(4096))
    with_a_disk("a small disk", fill, "no space left on device")


def a_disk_that_becomes_read_only():
    """The same of a disk that was good for a job before, and that the kernel has made read-only since."""
    def remount(c, disk):
        c.job("submit", "--on", "node=broken", "--", "true")
        at = disk / "s"    # over itself: what is open for writing holds the disk as it is
        subprocess.run(["mount", "--bind", at, at], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", at], check=True)
    with_a_disk("a disk of its own", remount, "read-only file system")


def no_node_can():
    """What no node can start waits and says why; --pending-timeout counts on; nothing is an attempt."""
    with Jobs([]) as c, blocked_keys(c.folder / "broken") as mend:
        if mend is None:
            return c.stop()
        c.join("broken", "--resources", "cpu=4", "--storage", c.folder / "broken")
        c.joined("broken")
        out, err = c.job("submit", "--id", "late", "--retries", "3", "--pending-timeout", "6s", "--", "true", code=1)
        assert "FAILED" in err[-1] and "within 6 s" in err[-1] and "cannot be written" in err[-1], err
        assert c.info("late")["attempt"] == 1
        c.job("submit", "--id", "waits", "--no-wait", "--", "true")
        c.wait_until(lambda: "cannot be written" in c.info("waits")["reason"], "a reason")
        c.join("second", "--resources", "cpu=1")
        c.joined("second")
        c.until("waits", "SUCCEEDED")
        assert c.info("waits")["attempt"] == 1 and c.info("waits")["node"] == "second"
        c.stop()


def the_jobs_own_fault():
    """A command that is not there, no executable, or for another machine rests no node."""
    with Jobs([("n1", [])]) as c:
        c.job("submit", "--", "no-such-command", code=1)
        made = c.folder_of("strange", "")
        (made / "run.sh").write_bytes(b"\x7fELF nonsense")
        err = c.job("submit", "--working-dir", made, "--", "./run.sh", code=1)[1]
        assert "FAILED" in err[-1], err
        (made / "run.sh").write_text("#!/no/such/interpreter\n")
        err = c.job("submit", "--working-dir", made, "--", "./run.sh", code=1)[1]
        assert "FAILED" in err[-1], err
        c.job("submit", "--working-dir", made, "--", made, code=1)    # a folder
        assert c.node("n1")["rests_s"] is None
        c.job("submit", "--", "true")
        c.stop()


@contextlib.contextmanager
def with_cpus(*cpus):
    """A cluster of nodes n0, n1, ... with so many cpus."""
    with Jobs([]) as c:
        for i, n in enumerate(cpus):
            c.join(f"n{i}", "--resources", f"cpu={n}")
            c.joined(f"n{i}")
        yield c


def jobs_that_take_all_cpus():
    """Jobs whose entry processes have all cpus, and whose tasks need one: all are done."""
    hello = find_program("010_hello_task")
    for cpus, names in (((2,), "ab"), ((2, 2), "abcdef")):
        with with_cpus(*cpus) as c:
            assert submit_all(c, names, "--", hello) == [0] * len(names)
            c.stop()


def a_job_that_holds_its_cpu():
    """A job that computes in its own process keeps its cpu: what waits behind it does not start."""
    with with_cpus(1) as c:
        c.job("submit", "--id", "first", "--no-wait", "--", "sleep", "1000")
        c.until("first", "RUNNING")
        c.job("submit", "--id", "second", "--pending-timeout", "2s", "--", "true", code=1)
        assert c.info("first")["state"] == "RUNNING"
        c.job("stop", "first")
        c.stop()


def a_wait_is_said():
    """Whose tasks wait for room that another job has says so in its log and in its status: for what, and who has it."""
    with with_cpus(1) as c:
        c.job("submit", "--id", "busy", "--no-wait", "--", "sleep", "1000")
        c.until("busy", "RUNNING")
        c.job("submit", "--id", "waits", "--cpus", "0", "--no-wait", "--", find_program("010_hello_task"))
        now = c.wait_until(lambda: "held by" in (i := c.info("waits"))["reason"] and i, "a reason")
        assert now["state"] == "RUNNING" and re.search(r"waits for cpu=1 for \d+ s; n0: cpu 1 of 1 held by job busy \(entry\)", now["reason"]), now
        c.wait_until(lambda: "calls wait for room that others have" in "\n".join(c.job("logs", "waits")[1]), "a line in the log")
        rows = c.status()["jobs"]
        assert sorted(r["name"] for r in rows) == ["job busy", "job waits"], rows
        for row in rows:
            pid = row["pid"]
            assert row["host"] == "n0" and row["state"] == "running" and row["connected"] and pathlib.Path(f"/proc/{pid}").is_dir(), row
        code, out, _ = c.tool("stop", c.address)
        assert code == 0 and "2 jobs" in out, out
        for run in [c.head, *c.nodes.values()]:
            run.wait(SECONDS)


def what_nobody_reads():
    """A field that nobody reads is refused by its name, and a demand that nobody means is asked about."""
    with Jobs([("n1", [])]) as c:
        change = c.tool("dashboard", c.address, "--key", "submit")[1].strip()
        for more, name in (({"metadata": {"owner": "ann"}}, "metadata"), ({"runtime_env": {"pip": ["x"]}}, "runtime_env.pip"),
                           ({"entrypoint_label_selector": {"zone": "a"}}, "entrypoint_label_selector")):
            status, text, _ = ask(c, "POST", "/api/jobs/", json.dumps({"entrypoint": "true", **more}), change)
            assert status == 501 and f"not supported: {name}" in json.loads(text)["message"], (status, text)
        status, text, _ = ask(c, "POST", "/api/jobs/", json.dumps({"entrypoint": "true", "metadata": {}, "runtime_env": {}}), change)
        assert status == 200, text    # as Ray's client sends them
        status, text, _ = ask(c, "GET", "/api/v1/jobs?pages=1", key=change)
        assert status == 400 and "pages" in json.loads(text)["message"] and "limit" in json.loads(text)["hint"], (status, text)
        err = c.job("submit", "--memory", "1", "--", "true", code=2)[1]
        assert any("--memory 1 is 1 byte" in line and "1GiB" in line for line in err), err
        err = c.job("submit", "--memory", "512KiB", "--", "true", code=2)[1]
        assert any("--memory 512KiB is 524288 bytes" in line for line in err), err
        err = c.job("submit", "--id", "", "--", "true", code=2)[1]
        assert any("it is empty" in line for line in err), err
        c.stop()


# ---- strangers, keys, files of the head ----------------------------------------------------------


def ports_of(pid):
    """The TCP ports at which a process listens."""
    links = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(os.readlink(fd))
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(f[1].split(":")[1], 16) for f in lines if f[3] == "0A" and f"socket:[{f[9]}]" in links]


@contextlib.contextmanager
def stranger_at(run):
    """A connection that says nothing and stays, at the port of a program that waits for a place."""
    port = run.wait_until(lambda: ports_of(run.process.pid), "port of its own", SECONDS)[0]
    with socket.create_connection(("127.0.0.1", port)) as made:
        yield made


def a_stranger_stays():
    """A program with a connection at its port that proves nothing ends when its work is done, and at once on SIGTERM."""
    with Jobs(nodes=()) as c:
        work = c.program("010_hello_task")
        with stranger_at(work):
            c.join("late", "--resources", "cpu=1")
            c.check_ends(work, "010_hello_task")    # within a fraction of what a start may take
        c.nodes["late"].process.terminate()
        assert c.nodes["late"].wait(SECONDS) == 0
        work = c.program("010_hello_task")
        with stranger_at(work):
            work.process.terminate()
            work.check(work.wait(SECONDS) != 0, "it did its work")
        c.stop()


def http_to(c, request, count=1, small=False):
    """Open connections to the head that have sent a request and read nothing."""
    host, port = c.address.rsplit(":", 1)
    for _ in range(count):
        made = socket.socket()
        if small:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect((host, int(port)))
        made.sendall(request)
        yield made


def get(c, path, key):
    return f"GET {path} HTTP/1.1\r\nHost: {c.address}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


def a_key_that_may_look():
    """Hundreds of connections of one key that ask and do not read: tools, pages and scrapes are answered, and the head ends."""
    with Jobs([("n1", [])]) as c:
        view, change = (c.tool("dashboard", c.address, "--key", which)[1].strip() for which in ("view", "submit"))
        with contextlib.ExitStack() as held:
            for each in http_to(c, get(c, "/api/v1/events", view), 300, small=True):
                held.enter_context(each)
            for each in http_to(c, 20 * get(c, "/api/v1/samples?seconds=3600&points=4096", view), 100, small=True):
                held.enter_context(each)
            for path, key in (("/metrics", view), ("/api/v1/nodes", view), ("/api/v1/jobs", change)):
                status, text, _ = ask(c, "GET", path, key=key)
                assert status == 200, f"{path}: {status} {text}"
            assert [n["name"] for n in c.status()["nodes"]] == ["n1"]
            c.job("submit", "--id", "beside", "--", "true")
            # An open page and a client between two requests keep no head from ending.
            held.enter_context(next(http_to(c, get(c, "/api/v1/events", change))))
            held.enter_context(next(http_to(c, get(c, "/api/v1/nodes", change))))
            assert c.tool("stop", c.address)[0] == 0
            assert c.head.wait(SECONDS) == 0


def files_of_the_head():
    """A state folder under a head: a log, a lock or all of it removed; a disk that is read-only at the next start."""
    with Jobs([("n1", [])], listen=f"127.0.0.1:{free_port()}", state=True) as c:
        log, lock = c.state / "head.log", c.state / "head.lock"

        def drain(*words):
            code, out, err = c.tool("drain", "n1", "--address", c.address, *words)
            assert code == 0, (code, out, err)
            return "\n".join([out, *err])

        def second():
            with c.run(c.skein, "head", "--listen", "127.0.0.1:0", "--state", c.state) as other:
                other.check(other.wait(SECONDS) == 1 and "is in use by another head" in other.stderr, "a second head in one folder")

        second()
        lock.unlink()    # as a cleaner of old files does
        second()
        log.unlink()
        drain()
        assert log.exists() and "head.log has been removed" in c.head.stderr, c.head.stderr
        assert c.status()["trouble"] == ""
        shutil.rmtree(c.state)
        assert "head.log cannot be written" in drain("--undo")
        assert "head.log cannot be written" in c.status()["trouble"]
        c.state.mkdir()    # now it can be, at its next try
        c.wait_until(lambda: c.status()["trouble"] == "" and log.exists(), "a log in the new folder")
        drain()
        c.nodes["n1"].process.kill()
        c.head.process.kill()
        c.head.wait(SECONDS)
        if os.geteuid() != 0:
            c.state.chmod(0o500)
            log.chmod(0o400)
            c.start_head(c.address)
        else:    # root may write anywhere; where it may not mount either, this part is left out
            mounted = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
            if Run(["unshare", "-m", "sh", "-c", mounted, "-", c.state, "true"]).wait(SECONDS) != 0:
                return
            c.head = c.run("unshare", "-m", "sh", "-c", mounted, "-", c.state, c.skein, "head", "--listen", c.address, "--state", c.state)
            c.head.wait_until(lambda: "skein join" in c.head.stdout, "join line", SECONDS)
        now = c.status()
        assert "head.log cannot be written" in now["trouble"], now
        assert [(n["name"], n["draining"]) for n in now["missing"]] == [("n1", True)], now


# ---- what ranks compare, what the page tells -----------------------------------------------------

BROKEN = '''mkdir -p runs/a
printf 'step,"val_a,val_b",epoch,"a ""b""",loss,lr\\r\\n' > runs/a/metrics.csv.new
for i in $(seq 1 300); do l=0.5; test $i = 150 && l=inf; test $i -gt 290 && l=nan; printf "$i,7,1,-inf,$l,0.1\\r\\n" >> runs/a/metrics.csv.new; done
mv runs/a/metrics.csv.new runs/a/metrics.csv
while ! test -e "$1"; do sleep 0.1; done
'''


def broken_numbers():
    """A loss that is NaN is NaN everywhere; names with commas and quotes, and lines with Python's ends, move no column."""
    with Api([("n1", [])]) as c:
        go = c.folder / "go"
        c.job("submit", "--id", "b", "--no-wait", "--working-dir", c.folder_of("broken", BROKEN), "--", "./run.sh", go)
        now = c.get_when("/api/v1/jobs/b", lambda j: j.get("step") == 300, "its last row")
        assert (now["loss"], now["epoch"], now["learning_rate"]) == ("NaN", 1, 0.1), now
        assert now["run_folder"].endswith("/runs/a"), now
        rows = c.get("/api/v1/jobs/b/rows")
        assert rows["columns"] == ["step", "val_a,val_b", "epoch", 'a "b"', "loss", "lr"], rows["columns"]
        assert rows["rows"][0] == [1, 7, 1, "-Infinity", 0.5, 0.1] and rows["rows"][149][4] == "Infinity" and rows["rows"][299][4] == "NaN", rows["rows"]
        few = c.get("/api/v1/jobs/b/rows?points=3")
        assert few["rows"][-1] == [300, 7, 1, "-Infinity", "NaN", 0.1] and len(few["rows"]) <= 6, few
        status, text, _ = ask(c, "GET", "/metrics", key=c.view)
        assert status == 200 and 'skein_train_loss{job="b"} NaN\n' in text and 'skein_train_learning_rate{job="b"} 0.1\n' in text, [line for line in text.splitlines() if "train" in line]
        go.touch()
        done = c.get_when("/api/v1/jobs/b", lambda j: j["state"] == "SUCCEEDED", "its end")
        assert done["loss"] == "NaN", done
        c.end()


def page_counts():
    """What waits has begun nothing; jobs are counted, found and named with who sent them; nodes that are gone hold nothing."""
    with Api([("n1", []), ("n2", [])]) as c:
        c.job("submit", "--id", "waits", "--no-wait", "--cpus", "99", "--", "true")
        for i in range(7):
            c.job("submit", "--id", f"done{i}", "--", "sh", "-c", f"echo word{i}")
        now = c.get("/api/v1/jobs/waits")
        assert now["state"] == "PENDING" and now["attempt"] == 0 and now["attempts"] == [] and now["submitted"] > 0 and now["submitted_by"], now
        told = c.get("/api/v1/jobs?limit=2")
        assert len(told["jobs"]) == 2 and told["found"] == told["total"] == 8 and told["states"] == {"PENDING": 1, "SUCCEEDED": 7}, told
        found = c.get("/api/v1/jobs?find=WORD3")
        assert [j["id"] for j in found["jobs"]] == ["done3"] and found["found"] == 1 and found["total"] == 8 and found["states"] == told["states"], found
        plain = c.get("/api/v1/jobs/done0")
        assert plain["attempt"] == 1 and "run_folder" not in plain and "training" not in plain, plain
        c.nodes["n1"].process.kill()
        gone = c.wait_until(lambda: next((n for n in c.get("/api/v1/nodes")["nodes"] if n["name"] == "n1" and n["state"] == "missing"), None), "a node that is missing")
        assert "used" not in gone and "load" not in gone, gone
        status, text, _ = ask(c, "GET", "/metrics", key=c.view)
        assert status == 200 and 'skein_resources{node="n1"' not in text and 'skein_resources{node="n2"' in text, text
        del c.nodes["n1"]
        c.end()


def whole_log():
    """A log is one text that a browser saves, as it was printed; who may only look cannot stop a job, and is told so beforehand."""
    with Api([("n1", [])]) as c:
        c.job("submit", "--id", "log", "--", "sh", "-c", r"printf '\033[31mred\033[0m\n 10%%\r100%%\n'; seq 30000")
        status, text, headers = ask(c, "GET", "/api/v1/jobs/log/log", key=c.view)
        assert status == 200 and headers["Content-Type"].startswith("text/plain") and headers["Content-Disposition"] == 'attachment; filename="log.log"', headers
        assert text == "\033[31mred\033[0m\n 10%\r100%\n" + "".join(f"{i}\n" for i in range(1, 30001)), (len(text), text[:200])
        assert "there is no job" in c.get("/api/v1/jobs/none/log", 404)["message"]
        change = c.tool("dashboard", c.address, "--key", "submit")[1].strip()
        assert c.get("/api/v1/session") == {"may": "view"} and json.loads(ask(c, "GET", "/api/v1/session", key=change)[1]) == {"may": "change"}
        c.job("submit", "--id", "long", "--no-wait", "--", "sleep", "1000")
        c.until("long", "RUNNING")
        assert ask(c, "POST", "/api/jobs/long/stop", key=c.view)[0] == 403
        assert ask(c, "POST", "/api/jobs/long/stop", key=change)[0] == 200
        c.until("long", "STOPPED")
        c.end()


CASES = [
    # nodes that are silent, heads that come back
    ("stopped agent", stopped_agent),
    ("lost after", lost_after),
    ("poison", poison),
    ("heads that come back", heads_that_come_back),
    ("followed over heads", followed_over_heads),
    ("no head for a while", no_head_for_a_while),

    # nodes that cannot start anything, jobs that wait for each other
    ("a node that cannot write", a_node_that_cannot_write),
    ("a node whose disk is full", a_node_whose_disk_is_full),
    ("a disk that becomes read only", a_disk_that_becomes_read_only),
    ("no node can", no_node_can),
    ("the jobs own fault", the_jobs_own_fault),
    ("jobs that take all cpus", jobs_that_take_all_cpus),
    ("a job that holds its cpu", a_job_that_holds_its_cpu),
    ("a wait is said", a_wait_is_said),
    ("what nobody reads", what_nobody_reads),

    # strangers, keys, files of the head
    ("a stranger stays", a_stranger_stays), ("a key that may look", a_key_that_may_look), ("files of the head", files_of_the_head),

    # what ranks compare, what the page tells
    ("numbers that are not finite, columns with commas", broken_numbers),
    ("the page counts what is there", page_counts),
    ("a whole log, and who may stop", whole_log),

]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad days of a cluster of real processes: what its operators meet in the first week.

    bad_days_test.py [NAME]

By events: output lines, ends of processes, and what `skein status` and `skein job status` say.
"""
# label: runtime
import contextlib
import os
import pathlib
import shutil
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import SECONDS, Jobs, ask  # noqa: E402
from program import Run, free_port, run_cases  # noqa: E402

# ---- nodes that are silent, heads that come back -------------------------------------------------

# ---- nodes that cannot start anything, jobs that wait for each other -----------------------------

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

CASES = [
    # nodes that are silent, heads that come back

    # nodes that cannot start anything, jobs that wait for each other

    # strangers, keys, files of the head
    ("a stranger stays", a_stranger_stays), ("a key that may look", a_key_that_may_look), ("files of the head", files_of_the_head),

    # what ranks compare, what the page tells

]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

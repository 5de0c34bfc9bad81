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
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import SECONDS, Jobs, ask  # noqa: E402
from program import find_program, run_cases  # noqa: E402

# ---- nodes that are silent, heads that come back -------------------------------------------------

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


def blocked_token(folder):
    """A folder in which no token can be written, whoever runs this."""
    (folder / "token.new" / "in-the-way").mkdir(parents=True)
    return folder


def a_node_that_cannot_write():
    """A node that cannot write its token takes no job from a good one; once it can it is used."""
    with Jobs([]) as c:
        storage = blocked_token(c.folder / "broken")
        c.join("broken", "--resources", "cpu=4", "--storage", storage)
        c.join("good", "--resources", "cpu=4")
        c.joined("broken")
        c.joined("good")
        now = swallows_nothing(c, "broken")
        assert "token cannot be written" in now["rests_for"], now
        why = c.wait_until(lambda: (i := c.info("other"))["state"] == "PENDING" and i["reason"], "a reason")
        assert "broken" in why and "token cannot be written" in why, why
        shutil.rmtree(storage / "token.new")
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
    with Jobs([]) as c:
        storage = blocked_token(c.folder / "broken")
        c.join("broken", "--resources", "cpu=4", "--storage", storage)
        c.joined("broken")
        out, err = c.job("submit", "--id", "late", "--retries", "3", "--pending-timeout", "6s", "--", "true", code=1)
        assert "FAILED" in err[-1] and "within 6 s" in err[-1] and "token cannot be written" in err[-1], err
        assert c.info("late")["attempt"] == 1
        c.job("submit", "--id", "waits", "--no-wait", "--", "true")
        c.wait_until(lambda: "token cannot be written" in c.info("waits")["reason"], "a reason")
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


def jobs_that_take_all_cpus():
    """Jobs whose entry processes have all cpus, and whose tasks need one: all are done."""
    hello = find_program("010_hello_task")
    for nodes, names in (((("n0", 2),), "ab"), ((("n0", 2), ("n1", 2)), "abcdef")):
        with Jobs([]) as c:
            for name, cpus in nodes:
                c.join(name, "--resources", f"cpu={cpus}")
                c.joined(name)
            assert submit_all(c, names, "--", hello) == [0] * len(names)
            c.stop()


def a_job_that_holds_its_cpu():
    """A job that computes in its own process keeps its cpu: what waits behind it does not start."""
    with Jobs([]) as c:
        c.join("n0", "--resources", "cpu=1")
        c.joined("n0")
        c.job("submit", "--id", "first", "--no-wait", "--", "sleep", "1000")
        c.until("first", "RUNNING")
        c.job("submit", "--id", "second", "--pending-timeout", "2s", "--", "true", code=1)
        assert c.info("first")["state"] == "RUNNING"
        c.job("stop", "first")
        c.stop()


def a_wait_is_said():
    """Whose tasks wait for room that another job has says so in its log and in its status: for what, and who has it."""
    with Jobs([]) as c:
        c.join("n0", "--resources", "cpu=1")
        c.joined("n0")
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

# ---- what ranks compare, what the page tells -----------------------------------------------------

CASES = [
    # nodes that are silent, heads that come back

    # nodes that cannot start anything, jobs that wait for each other
    ("a_node_that_cannot_write", a_node_that_cannot_write),
    ("a_node_whose_disk_is_full", a_node_whose_disk_is_full),
    ("a_disk_that_becomes_read_only", a_disk_that_becomes_read_only),
    ("no_node_can", no_node_can),
    ("the_jobs_own_fault", the_jobs_own_fault),
    ("jobs_that_take_all_cpus", jobs_that_take_all_cpus),
    ("a_job_that_holds_its_cpu", a_job_that_holds_its_cpu),
    ("a_wait_is_said", a_wait_is_said),
    ("what_nobody_reads", what_nobody_reads),

    # strangers, keys, files of the head

    # what ranks compare, what the page tells

]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

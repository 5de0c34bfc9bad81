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
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import Jobs  # noqa: E402
from program import run_cases  # noqa: E402

SECONDS = 60.0

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

# ---- strangers, keys, files of the head ----------------------------------------------------------

# ---- what ranks compare, what the page tells -----------------------------------------------------

CASES = [
    # nodes that are silent, heads that come back
    ("stopped_agent", stopped_agent),
    ("lost_after", lost_after),
    ("poison", poison),
    ("heads_that_come_back", heads_that_come_back),
    ("followed_over_heads", followed_over_heads),
    ("no_head_for_a_while", no_head_for_a_while),

    # nodes that cannot start anything, jobs that wait for each other

    # strangers, keys, files of the head

    # what ranks compare, what the page tells

]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

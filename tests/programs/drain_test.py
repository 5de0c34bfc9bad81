#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nodes that are to be empty by a deadline, in a cluster of real processes: what leaves, what stays and why.

    drain_test.py [NAME]

By events: output lines, ends of processes, and what `skein job status` says.
"""
# label: runtime
import json
import re
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import Jobs  # noqa: E402
from program import run_cases  # noqa: E402

SECONDS = 60.0
# Says which attempt it is, runs until a file is there, and says when it is asked to end.
SCRIPT = """trap 'echo asked; exit 9' TERM
echo attempt $SKEIN_JOB_ATTEMPT
while [ ! -e "$1" ]; do sleep 0.05; done
echo over
"""


class Drains(Jobs):
    def drain(self, *words, code=0):
        got, out, err = self.tool("drain", *words, "--address", self.address)
        assert got == code, f"skein drain {words}: {got}, not {code}\n{out}\n{err}"
        return out, err

    def drains(self, *words):
        """The same, beside the test."""
        return self.run(self.skein, "drain", *words, "--address", self.address)

    def job_on(self, node, name, *words):
        """A job that runs there, and may run elsewhere."""
        others = [other for other in self.nodes if other != node]
        for other in others:
            self.drain(other)
        folder = self.folder_of(name, SCRIPT)
        self.job("submit", "--id", name, "--no-wait", "--working-dir", folder, *words, "--", "./run.sh", self.cwd / f"{name}.over")
        now = self.until(name, "RUNNING")
        for other in others:
            self.drain(other, "--undo")
        assert now["node"] == node, now
        return now

    def end_job(self, name, state="SUCCEEDED"):
        (self.cwd / f"{name}.over").write_text("")
        now = self.until(name, state)
        (self.cwd / f"{name}.over").unlink()
        return now


def leaves():
    """Workers and an entry process leave by the deadline: their calls end, its next attempt runs elsewhere, and counts for nothing."""
    with Drains() as c:
        c.job_on("n2", "moves")
        driver = c.program("skein_many_waits", "--workers", 4, c.cwd / "begun", c.cwd / "go")
        c.wait_until(lambda: (c.node("n2") or {}).get("workers", 0) > 1, "workers on n2")
        drain = c.drains("n2", "--within", "8s")
        drain.wait_until(lambda: re.search(r"  moves  entry process of job moves \(pid \d+\): it is told to end in [\d.]+ s, and its next attempt begins on another node\n", drain.stdout),
                         "what becomes of the entry process", SECONDS)
        drain.check(re.search(r"node n2 takes no new workers, it is to be empty in [78][.0-9]* s; ", drain.stdout), "no deadline")
        (c.cwd / "go").write_text("")
        drain.wait_until(lambda: re.search(r"  left   worker-\d+ of skein_many_waits", drain.stdout), "a worker that has left", SECONDS)
        drain.check(drain.wait(SECONDS) == 0 and drain.stdout.endswith("n2 is empty\n"), "it did not become empty")
        drain.check("  left   entry process of job moves" in drain.stdout, "no word of the entry process")
        now = c.until("moves", "RUNNING")
        assert now["node"] == "n1" and now["attempt"] == 2 and now["retries"] == 0, now
        c.wait_until(lambda: c.job("logs", "moves")[0] == "attempt 1\nasked\nattempt 2\n", "the first line of its next attempt")
        now = c.end_job("moves")
        assert now["attempt"] == 2 and now["exit_code"] == 0, now
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        assert c.node("n2")["draining"] and c.node("n2")["workers"] == 0, c.status()
        c.stop()


def stays():
    """What nobody else has room for stays, and the answer says so; by force it ends, and counts for nothing either."""
    with Drains() as c:
        c.job_on("n2", "pinned", "--on", "node=n2")
        out, err = c.drain("n2", "--within", "1s", code=1)
        assert "n2 is not empty; what stays:\n  stays  entry process of job pinned" in out and "no other node has room for cpu=1 on node=n2 now" in out, out
        assert "next: the drain goes on; skein drain n2 --within 30s --force ends them, skein drain n2 --undo takes it back\n" in out and not err, (out, err)
        assert c.info("pinned")["state"] == "RUNNING" and c.info("pinned")["attempt"] == 1
        code, out, _ = c.tool("drain", "n2", "--within", "1s", "--json", "--address", c.address)
        now = json.loads(out)
        assert code == 1 and not now["empty"] and now["left_s"] == 0, now
        assert [(one["what"], one["job"], one["does"]) for one in now["leases"]] == [("entry process", "pinned", "stays")], now
        out, err = c.drain("n2", "--within", "1s", "--force")
        assert out.endswith("n2 is empty\n") and "(--force)" not in out, out
        assert c.info("pinned")["state"] in ("PENDING", "RETRYING"), c.info("pinned")
        c.drain("n2", "--undo")
        now = c.until("pinned", "RUNNING")
        assert now["attempt"] == 2 and now["retries"] == 0, now
        c.end_job("pinned")
        for words, what in ((("n2", "--force"), "--within"), (("n2", "--within", "soon"), "a time is wanted"), (("n2", "--within", "1s", "--undo"), "--undo"), (("n2", "--within", ""), "empty")):
            err = c.drain(*words, code=2)[1]
            assert len(err) == 1 and what in err[0], (words, err)
        c.stop()


def the_last_one():
    """A drain of the only node ends nothing, and says what would help."""
    with Drains([("n1", [])]) as c:
        c.job_on("n1", "only")
        out, err = c.drain("n1", "--within", "1s", code=1)
        assert "it was the last one" in err[0] and "no other node has room for cpu=1 now" in out and "next: skein join adds a node" in out, (out, err)
        assert c.info("only")["state"] == "RUNNING" and c.info("only")["attempt"] == 1
        c.join("n2", "--resources", "cpu=4")    # the drain goes on
        c.joined("n2")
        c.wait_until(lambda: c.info("only")["node"] == "n2" and c.info("only")["state"] == "RUNNING", "the job on the node that has come")
        c.end_job("only")
        c.stop()


def changes():
    """Another deadline, and a drain that is taken back midway: both are heard by who waits."""
    with Drains() as c:
        c.job_on("n1", "held", "--on", "node=n1")
        first = c.drains("n1", "--within", "10m")
        first.wait_until(lambda: "  stays  entry process of job held" in first.stdout, "what stays", SECONDS)
        c.drain("n1", "--within", "1s", code=1)
        first.check(first.wait(SECONDS) == 1 and "n1 is not empty" in first.stdout, "it did not hear of the other deadline")
        second = c.drains("n1", "--within", "10m")
        second.wait_until(lambda: "  stays  " in second.stdout, "what stays", SECONDS)
        c.drain("n1", "--undo")
        second.check(second.wait(SECONDS) == 1 and "the drain of n1 was taken back; what still runs there stays: 1\n" in second.stdout, "it did not hear that")
        out, _ = c.drain("n1")
        assert out == "node n1 takes no new workers; 1 still runs there\n  stays  entry process of job held" + out[out.index(" (pid"):] and "with a deadline" in out, out
        assert c.info("held")["attempt"] == 1
        c.end_job("held")
        c.stop()


def killed_head():
    """The head dies between the drain and its deadline: the next one goes on with it."""
    with Drains(state=True, head=("--storage", "files")) as c:
        c.job_on("n2", "moves")
        drain = c.drains("n2", "--within", "8s")
        drain.wait_until(lambda: "  moves  " in drain.stdout, "what becomes of it", SECONDS)
        c.head.process.kill()
        c.head.process.wait()
        c.start_head(c.address)
        drain.check(drain.wait(SECONDS) == 0 and drain.stdout.endswith("n2 is empty\n"), "it did not become empty")
        now = c.until("moves", "RUNNING")
        assert now["node"] == "n1" and now["attempt"] == 2 and now["retries"] == 0, now
        c.end_job("moves")
        c.stop()


def notices():
    """A host that is about to be taken away drains its node; where all are, nothing ends."""
    with Drains([("n1", [])]) as c:
        for name in ("n2", "n3"):
            c.join(name, "--resources", "cpu=4", "--notice-file", c.cwd / name, "--notice-within", "6s")
            c.joined(name)
        c.job_on("n2", "moves")
        (c.cwd / "n2").write_text("")
        c.wait_until(lambda: c.node("n2")["draining"], "a node that drains")
        c.wait_until(lambda: c.info("moves")["node"] != "n2" and c.info("moves")["state"] == "RUNNING", "the job elsewhere")
        assert c.info("moves")["attempt"] == 2
        c.end_job("moves")
        # With the host the drain is over.
        c.nodes["n2"].process.terminate()
        c.nodes["n2"].wait(SECONDS)
        (c.cwd / "n2").unlink()
        c.join("n2", "--resources", "cpu=4")
        c.joined("n2")
        assert not c.node("n2")["draining"], c.status()
        c.drain("n1")
        c.drain("n2")
        c.job_on("n3", "last")
        c.drain("n1")
        c.drain("n2")
        (c.cwd / "n3").write_text("")
        c.wait_until(lambda: c.node("n3")["draining"], "a node that drains")
        drained = c.drains("n1", "--within", "1s")
        drained.check(drained.wait(SECONDS) == 0, "n1 is not empty")
        assert c.info("last")["state"] == "RUNNING" and c.info("last")["node"] == "n3", c.info("last")
        c.end_job("last")
        code, _, err = c.tool("join", c.address, "--notice-url", "ftp://there")
        assert code != 0 and "is no http:// address" in err[0], (code, err)
        c.stop()


CASES = [("leaves", leaves), ("stays", stays), ("the last one", the_last_one), ("changes", changes), ("killed head", killed_head), ("notices", notices)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

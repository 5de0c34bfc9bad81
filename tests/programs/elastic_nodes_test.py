#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An elastic training as a job: its workers on the nodes of a cluster, and the bits of one undisturbed worker whatever becomes of those.

    elastic_nodes_test.py [NAME]

By events: output lines, ends of processes, rows of the run's table, what `skein job status` says.
"""
# label: train
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import Cluster  # noqa: E402
from program import Run, find_program, run_cases  # noqa: E402

SECONDS = 240.0
STEPS = 900
PROGRAM = ["--logical-shards", 8, "--checkpoint-every", 150, "--plain", "--samples", 1600, "--test", 200]


class Nodes(Cluster):
    """Nodes of so many cpus each, a folder for runs that they share, and `skein job` at the head."""

    def __init__(self, nodes=(("n1", 3), ("n2", 2)), shared=True, state=False):
        self.is_shared = shared
        super().__init__([(name, ["--resources", f"cpu={cpus}"]) for name, cpus in nodes], state=state)
        self.sent = self.cwd / "sent"
        self.sent.mkdir()
        shutil.copy(find_program("300_elastic_mnist"), self.sent / "train")

    def start_head(self, listen):
        self.shared = self.folder / "runs"
        if self.is_shared and "--runs" not in self.head_arguments:
            self.head_arguments += ["--runs", self.shared, "--storage", self.folder / "files"]
        super().start_head(listen)

    def info(self, name):
        code, out, err = self.tool("job", "status", name, "--json", SKEIN_ADDRESS=self.address)
        assert code == 0, (out, err)
        return json.loads(out)

    def start(self, name, *more, elastic="1:4", steps=STEPS, submit=()):
        return self.run(self.skein, "job", "submit", "--address", self.address, "--id", name, "--elastic", elastic, *submit, "--working-dir", self.sent, "--",
                        "./train", "--steps", steps, *PROGRAM, *more)

    def table(self, name):
        found = list(self.shared.glob(f"{name}-*/elastic/metrics.csv"))
        assert len(found) <= 1, found
        return found[0].read_bytes() if found else b""

    def rows(self, name):
        return max(0, self.table(name).count(b"\n") - 1)

    def until_rows(self, job, name, more):
        """The training goes on by so many rows."""
        before = self.rows(name)
        job.wait_until(lambda: self.rows(name) >= before + more, f"{more} more rows", SECONDS)

    def alone(self, steps=STEPS):
        """The table of the same training with one worker on this host."""
        folder = self.cwd / "alone"
        with Run([find_program("300_elastic_mnist"), "--workers", 1, "--steps", steps, *PROGRAM, "--runs-dir", folder], cwd=self.cwd, **self.env) as run:
            run.check(run.wait(SECONDS) == 0, "it failed")
        table = (folder / "elastic/metrics.csv").read_bytes()
        shutil.rmtree(folder)
        return table

    def workers(self):
        """Pids of workers, by node."""
        return {name: [pid for pid in node.marked.processes() if is_worker(pid)] for name, node in self.nodes.items()}

    def until_workers(self, job, many, at=(), gone=(), without=()):
        """So many workers, some at each of `at`, none at those of `without`, none of the pids `gone`."""
        def there():
            now = self.workers()
            pids = [pid for some in now.values() for pid in some]
            good = len(pids) == many and all(now[name] for name in at) and not any(now[name] for name in without) and not set(gone) & set(pids)
            return good and now
        return job.wait_until(there, f"{many} workers, at {at}, not at {without}", SECONDS)

    def drain(self, *arguments):
        code, out, err = self.tool("drain", *arguments, "--address", self.address)
        assert code == 0, (out, err)

    def check_equal(self, job, name, wanted):
        job.check(job.wait(SECONDS) == 0, "it failed")
        assert self.table(name) == wanted, f"other numbers of {name}"


def on_both_nodes():
    """Workers on all nodes; one is killed, a node is drained and comes back, another number is wanted: the numbers stay, drains redo nothing."""
    with Nodes() as c:
        wanted = c.alone()
        job = c.start("both")
        now = c.until_workers(job, 4, at=("n1", "n2"))
        c.until_rows(job, "both", 4)

        os.kill(now["n2"][0], signal.SIGKILL)
        c.until_workers(job, 4, at=("n1", "n2"), gone=now["n2"][:1])
        c.until_rows(job, "both", 4)

        c.drain("n2")
        job.wait_until(lambda: not c.workers()["n2"], "a node without workers", SECONDS)
        c.until_rows(job, "both", 4)
        c.drain("n2", "--undo")
        c.until_workers(job, 4, at=("n1", "n2"))
        c.until_rows(job, "both", 4)

        job.wait_until(lambda: re.search(r"^  workers +4 of 1:4$", c.tool("job", "status", "both", SKEIN_ADDRESS=c.address)[1], re.M), "a world of four", SECONDS)
        code, out, err = c.tool("scale", "both", "2", SKEIN_ADDRESS=c.address)
        assert code == 0 and "wants 2 workers now (1 to 4 are possible)" in out, (out, err)
        c.until_workers(job, 2)
        c.check_equal(job, "both", wanted)
        job.check(len(re.findall(r"failure \d+ of", job.stderr)) == 1, "more than the kill counts as a failure")
        assert c.info("both")["worlds"] >= 4, c.info("both")
        c.end()


def stays_at_least():
    """The workers that a training cannot do without stay on a node that is drained, until others have come; no step is lost."""
    with Nodes((("n1", 1), ("n2", 2))) as c:
        wanted = c.alone()
        job = c.start("least", elastic="2:3", submit=("--on", "node=n1"))
        c.until_workers(job, 3, at=("n1", "n2"))    # the job's own process has lent its cpu
        c.until_rows(job, "least", 4)
        c.drain("n2")
        now = c.until_workers(job, 2, at=("n1", "n2"))
        c.until_rows(job, "least", 4)
        c.join("n3", "--resources", "cpu=1")
        c.joined("n3")
        c.until_workers(job, 2, at=("n1", "n3"), gone=now["n2"], without=("n2",))
        c.until_rows(job, "least", 4)
        c.drain("n2", "--undo")
        c.until_workers(job, 3, at=("n1", "n2", "n3"))
        c.check_equal(job, "least", wanted)
        job.check("failure" not in job.stderr, "somebody was lost")
        c.end()


def shares():
    """Two trainings that each want all nodes: workers of the first leave between two steps, and the second has its share."""
    with Nodes() as c:
        wanted = c.alone(700)
        first = c.start("first", steps=700)
        c.until_workers(first, 4)
        second = c.start("second", steps=200)
        second.wait_until(lambda: c.rows("second") >= 8, "some rows", SECONDS)
        c.check_equal(second, "second", c.alone(200))
        c.check_equal(first, "first", wanted)
        first.check("others have less" in first.stderr or "less than their share" in first.stderr, "nobody has left for the other one")
        first.check("failure" not in first.stderr and "failure" not in second.stderr, "somebody was lost")
        c.end()


def another_head():
    """The head is killed while workers train and others wait: they go on, and the next head grants what waits."""
    with Nodes((("n1", 2),), state=True) as c:
        wanted = c.alone(600)
        job = c.start("head", steps=600)
        c.until_workers(job, 2)
        c.until_rows(job, "head", 4)
        c.head.process.kill()
        c.head.process.wait()
        c.start_head(c.address)
        c.until_rows(job, "head", 4)
        c.join("n2", "--resources", "cpu=2")
        c.joined("n2")
        c.until_workers(job, 4, at=("n1", "n2"))
        c.check_equal(job, "head", wanted)
        job.check("failure" not in job.stderr, "somebody was lost")
        c.end()


def losses():
    """An agent is killed with its workers, then the process that was submitted: the others go on, the next attempt from the newest checkpoint."""
    with Nodes((("n1", 3), ("n2", 2), ("n3", 1))) as c:
        wanted = c.alone()
        job = c.start("lost", "--resume", elastic="1:4", submit=("--on", "node=n1", "--retries", 1))
        c.until_workers(job, 4, at=("n1", "n2"))
        c.until_rows(job, "lost", 4)
        node = c.nodes.pop("n2")
        node.process.kill()
        node.wait(SECONDS)
        c.wait_until(lambda: not node.marked.processes(), "workers that died with their agent")
        c.until_rows(job, "lost", 4)
        c.until_workers(job, 4)
        job.wait_until(lambda: c.rows("lost") > 12 and list(c.shared.glob("lost-*/elastic/checkpoints/step-*")), "a checkpoint", SECONDS)
        (entry,) = [pid for pid in c.nodes["n1"].marked.processes() if not is_worker(pid) and is_train(pid)]
        before = c.workers()
        os.kill(entry, signal.SIGKILL)
        c.until_workers(job, 4, gone=[pid for some in before.values() for pid in some])
        c.check_equal(job, "lost", wanted)
        assert c.info("lost")["attempt"] == 2, c.info("lost")
        c.end()


def is_train(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"./train")
    return False


def what_cannot_be():
    """One line each, with what to do: no range, one for a program that cannot; what no nodes could hold waits, and says so."""
    with Nodes((("n1", 2),)) as c:
        def refused(words, *arguments):
            code, out, err = c.tool("job", "submit", "--address", c.address, *arguments)
            assert code == 2 and len(err) == 1 and re.search(words, err[0]), (code, out, err)
        refused("--elastic 4:1: the fewest are more than the most.*--elastic 1:4", "--elastic", "4:1", "--", "true")
        for wrong in ("0:2", "1:", "x", "1:4:2", "-1"):
            refused(f"--elastic {wrong} is no number of workers", f"--elastic={wrong}", "--", "true")
        refused("of which workers.*--elastic 1:4", "--gpus-per-worker", "1", "--", "true")

        fixed = c.run(c.skein, "job", "submit", "--address", c.address, "--id", "fixed", "--elastic", "1:2", "--", find_program("110_gpt_ddp"), "--steps", 4, "--plain")
        fixed.check(fixed.wait(SECONDS) == 1 and "for a program without a Trainer<Elastic<...>>" in fixed.stderr, "it is not refused")
        own = c.start("own", "--workers", 1, steps=20)
        own.check(own.wait(SECONDS) == 0 and "on n1" not in own.stderr.replace("RUNNING on n1", "").replace("STARTING on n1", "").replace("SUCCEEDED on n1", ""), "its own words do not win")
        large = c.start("large", elastic="3:4", steps=20)
        large.wait_until(lambda: "waiting: " in large.stderr and "cpu=1" in large.stderr, "why it waits", SECONDS)
        c.join("n2", "--resources", "cpu=2")
        large.check(large.wait(SECONDS) == 0, "it failed")
        c.end()


def shown_gpus(pids):
    """What CUDA_VISIBLE_DEVICES of those processes says."""
    shown = []
    for pid in pids:
        with contextlib.suppress(OSError):
            shown += [v.split(b"=")[1].decode() for v in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if v.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return shown


def gpus():
    """Ranks of a fixed number see those of all ranks of their node; workers that come and go their own; what no node has is refused."""
    with Nodes((("n1", "3,gpu=2"), ("n2", "3,gpu=2"))) as c:
        def submit(name, elastic, each, program, *arguments):
            return c.run(c.skein, "job", "submit", "--address", c.address, "--id", name, "--elastic", elastic, "--gpus-per-worker", each, "--", program, *arguments)

        gpt = find_program("110_gpt_ddp"), "--steps", 100000, "--plain", "--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--batch", 8, "--text", __file__
        job = submit("fixed", 4, 1, *gpt)

        def all_see(wanted, name=b"rank"):
            found = {node: shown_gpus([pid for pid in run.marked.processes() if name in comm(pid)]) for node, run in c.nodes.items()}
            return all(sorted(shown) == wanted for shown in found.values())
        job.wait_until(lambda: all_see(["0,1", "0,1"]), "lists of both gpus", SECONDS)
        c.tool("job", "stop", "fixed", SKEIN_ADDRESS=c.address)
        job.check(job.wait(SECONDS) == 1, "it was not stopped")
        c.wait_until(lambda: not any(c.workers().values()), "no rank")

        job = submit("own", "1:4", 1, find_program("300_elastic_mnist"), "--steps", 100000, *PROGRAM)
        job.wait_until(lambda: all_see(["0", "1"], b"worker"), "a gpu for each", SECONDS)
        c.tool("job", "stop", "own", SKEIN_ADDRESS=c.address)
        job.check(job.wait(SECONDS) == 1, "it was not stopped")

        job = submit("more", 2, 3, *gpt)
        job.check(job.wait(SECONDS) == 1 and re.search(r"asks for 3 gpus, and no node has as many: the most are 2, on n\d", job.stderr), "it is not refused")
        c.end()


def comm(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_bytes()
    return b""


def is_worker(pid):
    return b"worker" in comm(pid)


CASES = [("on both nodes", on_both_nodes), ("stays at least", stays_at_least), ("shares", shares), ("another head", another_head), ("losses", losses), ("what cannot be", what_cannot_be), ("gpus", gpus)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

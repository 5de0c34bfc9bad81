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
STEPS = 1200
PROGRAM = ["--logical-shards", 8, "--checkpoint-every", 50, "--plain", "--samples", 1600, "--test", 200]


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
            self.head_arguments += ["--runs", self.shared]
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


def is_worker(pid):
    with contextlib.suppress(OSError):
        return b"worker" in pathlib.Path(f"/proc/{pid}/comm").read_bytes()
    return False


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


CASES = [("on both nodes", on_both_nodes)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

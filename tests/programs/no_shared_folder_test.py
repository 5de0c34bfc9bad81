#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings on the nodes of a cluster that share no folder: their runs are where their job's own process is, and at the head when it ends.

    no_shared_folder_test.py [NAME]
"""
# label: train
import contextlib
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from elastic_nodes_test import Nodes, comm  # noqa: E402
from job_steps_test import curve  # noqa: E402
from program import TINY, find_program, run_cases, write_text  # noqa: E402

SECONDS = 240.0
STEPS = 900
LONG = 2000    # of a GPT


class Apart(Nodes):
    """Nodes that see nothing of each other; the head keeps files of jobs."""

    def __init__(self, nodes=(("n1", 3), ("n2", 2)), room=None, **more):
        self.room = room
        super().__init__(nodes, shared=False, **more)

    def start_head(self, listen):
        if "--storage" not in self.head_arguments:
            self.head_arguments += ["--storage", self.folder / "files", "--lost-after", "3s", *(["--results-room", self.room] if self.room else [])]
        super().start_head(listen)

    def folders(self, name, run):
        """Of a job's run, by node."""
        found = (self.folder / "home/.cache/skein").glob(f"node-*/jobs/{name}-*/runs/{run}")
        return {p.parents[3].name.removeprefix("node-"): p for p in found}

    def table(self, name):
        found = list(self.folders(name, "elastic").values())
        assert len(found) <= 1, f"the run is on several nodes: {found}"
        return (found[0] / "metrics.csv").read_bytes() if found and (found[0] / "metrics.csv").exists() else b""

    def fetched(self, name):
        code, out, err = self.tool("job", "fetch", name, SKEIN_ADDRESS=self.address)
        assert code == 0, (out, err)
        return self.cwd / name


def elastic():
    """Workers on both nodes; one node is drained and comes back, the first rank is killed and its place is another node's: the numbers stay."""
    with Apart((("n1", 1), ("n2", 3))) as c:
        wanted = c.alone(STEPS)
        job = c.start("apart", steps=STEPS, submit=("--on", "node=n1"))
        c.until_workers(job, 4, at=("n1", "n2"))    # the job's own process has lent its cpu
        c.until_rows(job, "apart", 4)

        code, out, err = c.tool("drain", "n2", "--within", "30s", "--address", c.address)
        assert code == 0 and len(re.findall(r"^  left   rank-", out, re.M)) == 3 and "n2 is empty" in out, (out, err)
        c.until_workers(job, 1, at=("n1",), without=("n2",))
        c.until_rows(job, "apart", 4)
        c.drain("n2", "--undo")
        now = c.until_workers(job, 4, at=("n1", "n2"))
        c.until_rows(job, "apart", 4)
        job.check("failure" not in job.stderr, "a drain counts as a failure")

        os.kill(now["n1"][0], signal.SIGKILL)    # it writes the table: now another node's does
        c.until_workers(job, 4, gone=now["n1"])
        c.until_rows(job, "apart", 4)
        job.check(job.wait(SECONDS) == 0, "it failed")
        assert set(c.folders("apart", "elastic")) == {"n1"}, "the run is not where its job is"
        got = c.fetched("apart")
        assert (got / "runs/elastic/metrics.csv").read_bytes() == wanted, "other numbers"
        assert list(got.glob(f"runs/elastic/checkpoints/step-*{STEPS}/manifest.json")), "no last checkpoint at the head"
        c.end()


def submit(c, name, steps=LONG, dim="32"):
    folder = c.cwd / "fsdp"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(find_program("120_gpt_fsdp"), folder / "train")
    return c.run(c.skein, "job", "submit", "--address", c.address, "--id", name, "--cpus", "1", "--retries", "3", "--env", "OMP_NUM_THREADS=1", "--working-dir", folder, "--",
                 "./train", "--strategy", "fsdp", "--workers", "2", "--steps", steps, "--checkpoint-every", 100, "--resume", "--text", write_text(c.cwd),
                 *[dim if before == "--dim" else word for before, word in zip(["", *TINY], TINY)])


def at_head(c, name):
    """The newest step of a job that the head has."""
    out = c.tool("job", "status", name, SKEIN_ADDRESS=c.address)[1]
    return max((int(step) for step in re.findall(r"results +\S+/step-(\d+) of attempt", out)), default=0)


def lose(c, name):
    """The node's agent and all that it has started, at once."""
    node = c.nodes.pop(name)
    for pid in [node.process.pid, *node.marked.processes()]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    node.wait(SECONDS)


def check_same(c, name, calm):
    got = c.fetched(name)
    assert curve(got) == curve(calm), "another curve than undisturbed"
    shards = sorted(p.relative_to(calm) for p in calm.rglob(f"step-*{LONG}/*.safetensors"))
    assert len(shards) == 2, shards
    for shard in shards:
        assert (got / shard).read_bytes() == (calm / shard).read_bytes(), shard


def fsdp():
    """A rank on each of two nodes. The node of a rank is killed, then that of the job: curve and shards are as undisturbed."""
    with Apart((("n1", 1), ("n2", 1)), state=True) as c:
        calm = submit(c, "calm")
        calm.check(calm.wait(SECONDS) == 0, "it failed")
        calm = c.fetched("calm")
        for name in ("n3", "n4"):
            c.join(name, "--resources", "cpu=1")
            c.joined(name)
        job = submit(c, "lost")
        job.wait_until(lambda: at_head(c, "lost") >= 100, "a step at the head", SECONDS)
        first = c.info("lost")["node"]
        lose(c, next(name for name in c.nodes if name != first and is_rank_on(c.nodes[name])))
        job.wait_until(lambda: "starting again" in job.stderr, "a restart", SECONDS)
        before = at_head(c, "lost")
        job.wait_until(lambda: at_head(c, "lost") > before, "a step after the restart", SECONDS)
        assert c.info("lost")["attempt"] == 1, c.info("lost")
        lose(c, first)
        job.check(job.wait(SECONDS) == 0, "it failed")
        now = c.info("lost")
        assert now["attempt"] == 2 and now["node"] != first, now
        assert int(re.findall(r"resumed after step (\d+)", job.stdout + job.stderr)[-1]) > 0
        check_same(c, "lost", calm)
        c.end()


def is_rank_on(node):
    return any(b"rank" in comm(pid) for pid in node.marked.processes())


def bad_luck():
    """A head without room is a line, and one that is killed comes again: the training goes on, and its results are there."""
    with Apart((("n1", 1), ("n2", 1)), state=True) as c:
        job = submit(c, "luck")
        job.wait_until(lambda: at_head(c, "luck") >= 100, "a step at the head", SECONDS)
        c.head.process.kill()
        c.head.process.wait()
        c.start_head(c.address)
        job.check(job.wait(SECONDS) == 0, "it failed")
        assert c.info("luck")["attempt"] == 1, c.info("luck")
        assert list(c.fetched("luck").rglob(f"step-*{LONG}/manifest.json")), "no last checkpoint"
        c.end()
    with Apart((("n1", 1), ("n2", 1)), room="1MiB") as c:
        job = submit(c, "full", steps=200, dim="256")
        job.check(job.wait(SECONDS) == 0, "it failed")
        said = [line for node in c.nodes.values() for line in node.stderr.splitlines() if "a step of a training is not kept at the head" in line]
        assert len(said) == 1 and "room" in said[0], said
        c.end()


CASES = [("elastic", elastic), ("fsdp", fsdp), ("bad luck", bad_luck)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training on a cluster whose nodes share no folder: its node is lost, and the next attempt goes on from the newest step at the head.

    job_steps_test.py [NAME]
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
from jobs_test import Jobs  # noqa: E402
from program import TINY, find_program, run_cases, write_text  # noqa: E402

COLUMNS = ("step", "loss", "lr", "grad_norm", "val_loss")


def curve(folder):
    """The columns of its table that do not depend on time."""
    rows = [line.split(",") for line in next(folder.rglob("metrics.csv")).read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if name in COLUMNS]
    assert len(kept) == len(COLUMNS), rows[0]
    return [[row[i] for i in kept] for row in rows]


def lose(c, node, job):
    """The node's agent and all of the job's processes, at once."""
    os.kill(c.nodes[node].process.pid, signal.SIGKILL)
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):    # it has ended, or is not ours
            variables = (entry / "environ").read_bytes().split(b"\0")
            if f"SKEIN_JOB={job}".encode() in variables and f"HOME={c.env['HOME']}".encode() in variables:
                os.kill(int(entry.name), signal.SIGKILL)


def lost_node():
    with Jobs(head=("--lost-after", "3s", "--storage", "storage"), state=True) as c:
        folder = c.cwd / "folder"
        folder.mkdir()
        shutil.copy(find_program("110_gpt_ddp"), folder / "train")
        command = ["--cpus", "2", "--working-dir", folder, "--env", "OMP_NUM_THREADS=1", "--", "./train", "--workers", "2", "--steps", "1500",
                   "--checkpoint-every", "100", "--resume", "--text", write_text(c.cwd), *TINY]
        calm = c.start("--id", "calm", *command)
        calm.check(calm.wait() == 0, "it failed")
        c.job("fetch", "calm")
        lost = c.start("--id", "lost", "--retries", "1", *command)
        lost.wait_until(lambda: "lost" in c.job("list")[0], "a job that has come to the head")
        lost.wait_until(lambda: re.search(r"results +gpt/step-\d+ of attempt 1", c.job("status", "lost")[0]), "a step at the head")
        node = c.info("lost")["node"]
        lose(c, node, "lost")
        lost.check(lost.wait() == 0, "it failed")
        now = c.info("lost")
        assert now["node"] != node and now["attempt"] == 2, now
        said = c.job("logs", "lost", "--attempt", "2")[0]
        assert re.search(r"steps +1500 of 1500, 1?\d00 of them since the resume", said), said
        c.job("fetch", "lost")
        assert curve(c.cwd / "lost") == curve(c.cwd / "calm"), "another curve than undisturbed"
        names = [str(p.relative_to(c.cwd / "lost")) for p in (c.cwd / "lost").rglob("step-00001500/*")]
        assert len(names) >= 2, names
        for name in names:
            if name.endswith(".safetensors"):
                assert (c.cwd / "lost" / name).read_bytes() == (c.cwd / "calm" / name).read_bytes(), name
        del c.nodes[node]    # it was killed
        c.end()


CASES = [("lost node", lost_node)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

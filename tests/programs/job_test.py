#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs whose processes a launcher has started together are a cluster: real mpirun, Slurm by its variables.

    job_test.py [NAME]
"""
# label: runtime
import contextlib
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, free_port, run_cases  # noqa: E402

EXAMPLES = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "examples"
SECONDS = 60.0


class Job:
    """Processes with Slurm's variables, on this host."""

    def __init__(self, size, *program, **env):
        self.size, self.program, self.env, self.port = size, program, env, free_port()
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        self.home = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="skein-job-"))
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self, rank, *more, **env):
        slurm = dict(SLURM_PROCID=rank, SLURM_STEP_ID=0, SLURM_JOB_ID=1, SLURM_STEP_NUM_TASKS=self.size, SLURM_LOCALID=rank, SLURM_NODEID=0,
                     SLURM_STEP_TASKS_PER_NODE=self.size, SLURM_STEP_NODELIST="localhost", SKEIN_MASTER_PORT=self.port, XDG_CONFIG_HOME=self.home, NODE=f"n{rank}")
        return self.stack.enter_context(Run([*self.program, *more], **{**slurm, **self.env, **env}))

    def start_all(self):
        """The driver comes last."""
        others = [self.start(rank) for rank in range(1, self.size)]
        return self.start(0), others


def check_ends(run, code, what="the driver"):
    run.check(run.wait(SECONDS) == code, f"exit code {run.process.returncode} of {what}")
    run.check_nothing_left()


def slurm_step():
    with Job(3, find_program("080_parameter_server")) as job:
        driver, others = job.start_all()
        check_ends(driver, 0)
        driver.check(driver.stdout == (EXAMPLES / "080_parameter_server.expected").read_text(), "another output than on one host")
        for run in others:
            check_ends(run, 0, "a node")
            run.check(run.stdout == "" and run.stderr == "", "a node says something")
        driver.check(driver.stderr == "", "the driver says something")


def all_take_part():
    """Three tasks that each want all of a node's cpus."""
    with Job(3, find_program("095_two_nodes"), "3") as job:
        driver, others = job.start_all()
        check_ends(driver, 0)
        ran = re.findall(r"^(\S+) ran (\d+) tasks$", driver.stdout, re.M)
        driver.check(len(ran) == 3 and all(int(tasks) > 0 for _, tasks in ran), "not all nodes have run tasks")
        for run in others:
            check_ends(run, 0, "a node")


def mpirun():
    with tempfile.TemporaryDirectory(prefix="skein-job-") as home:
        more = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        with Run([shutil.which("mpirun"), "--oversubscribe", *more, "-n", 3, find_program("080_parameter_server")], XDG_CONFIG_HOME=home,
                 SKEIN_MASTER_PORT=free_port()) as run:
            check_ends(run, 0, "mpirun")
            run.check(run.stdout == (EXAMPLES / "080_parameter_server.expected").read_text(), "another output than on one host")


def local_on_request():
    """One process of a job that wants to be alone waits for nobody."""
    with Job(3, find_program("010_hello_task")) as job:
        for run in (job.start(0, "--address", "local"), job.start(1, SKEIN_ADDRESS="local")):
            check_ends(run, 0)
            run.check(run.stdout == (EXAMPLES / "010_hello_task.expected").read_text(), "another output")


def lost_driver():
    """Nodes whose driver was killed end by themselves, with their workers, and say why."""
    with Job(2, find_program("095_two_nodes"), "9") as job:    # waits for nine nodes
        driver, others = job.start_all()
        driver.wait_until(lambda: re.search(r"nodes|node", driver.stderr + driver.stdout) or len(driver.marked.processes()) > 1, "a worker", SECONDS)
        driver.process.kill()
        driver.wait(SECONDS)
        for run in others:
            check_ends(run, 1, "a node")
            run.check("has been gone for 10 s" in run.stderr, "it does not say why")


def stopped():
    """A stop signal for all, as scancel sends it."""
    with Job(2, find_program("095_two_nodes"), "9") as job:
        driver, others = job.start_all()
        for run in (driver, *others): # the driver's worker alone may come before the other process hears signals
            run.wait_until(lambda run=run: len(run.marked.processes()) > 1, "a worker", SECONDS)
        for run in (driver, *others):
            run.process.send_signal(signal.SIGTERM)
        check_ends(driver, 143)
        for run in others:
            check_ends(run, 0, "a node")


def port_in_use():
    with Job(2, find_program("010_hello_task")) as job:
        first = job.start(0, SLURM_JOB_ID=1)
        first.wait_until(lambda: f":{job.port:04X} " in pathlib.Path("/proc/net/tcp").read_text(), "a listening head", SECONDS)
        second = job.start(0, SLURM_JOB_ID=2)
        check_ends(second, 1)
        second.check("in use" in second.stderr and str(job.port) in second.stderr, "it does not say so")
        other = job.start(1)
        check_ends(first, 0)
        check_ends(other, 0, "the node")


CASES = [("a Slurm step", slurm_step), ("all take part", all_take_part), ("local on request", local_on_request), ("a lost driver", lost_driver),
         ("stopped", stopped), ("a port in use", port_in_use)]

if __name__ == "__main__":
    if shutil.which("mpirun"):
        CASES.append(("real mpirun", mpirun))
    else:
        print("        mpirun is not installed: Open MPI is left out")
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

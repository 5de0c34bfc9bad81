#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs with a main of their own and a session in it: ranks that call between their steps, roles, signals.

    session_test.py [NAME]
"""
# label: runtime
import os
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, free_port, run_cases  # noqa: E402

EXAMPLES = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "examples"
SECONDS = 60.0


def wanted(rank, size):
    squares = [(step + rank) ** 2 for step in range(1, 6)]
    return f"rank {rank} of {size}: {squares[-1]} {sum(squares)} true"


def check_ends(*runs, code=0):
    for run in runs:
        run.check(run.wait(SECONDS) == code, f"exit code {run.process.returncode}")
    for run in runs:
        run.check_nothing_left()


def supervised_ranks():
    """Workers of a rank's session are no ranks, and start none."""
    for size in (1, 2):
        with Run([find_program("skein_rank_session"), size]) as run:
            check_ends(run)
            run.check(sorted(run.stdout.splitlines()) == [wanted(r, size) for r in range(size)], "other lines")


def thrown_at_the_start():
    """What is thrown before the first step is an error at once; the cluster that is named is said not to be used."""
    for size in (1, 2):
        with Run([find_program("skein_rank_session"), size, "missing"], SKEIN_ADDRESS="127.0.0.1:9") as run:
            check_ends(run, code=1)
            run.check("cannot open digits.gz" in run.stderr, "no word of what was thrown")
            run.check("starting again" not in run.stderr, "tried again")
            run.check(run.stderr.count("the cluster at 127.0.0.1:9") == 1, "not one word of the cluster")
            run.check(size == 1 or "before the first step" in run.stderr, "no word of why it is not tried again")


def stopped_while_starting():
    """Ctrl-C reaches ranks that have not come to launch(): they die of it, and that is a stop."""
    with Run([find_program("skein_rank_session"), 2, "starting"]) as run:
        run.wait_until(lambda: run.stdout.count("starting") == 2, "both ranks")
        os.killpg(run.process.pid, signal.SIGINT)
        check_ends(run, code=130)
        run.check("stopped by SIGINT" in run.stderr, "no word of the stop")
        run.check("error:" not in run.stderr, "a stop is called an error")


def launched_ranks():
    """Under torchrun and under srun: sessions of the ranks are no job of their own."""
    with tempfile.TemporaryDirectory(prefix="skein-session-") as home:
        port, other = free_port(), free_port()
        torchrun = [dict(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for r in range(2)]
        slurm = [dict(SLURM_PROCID=r, SLURM_STEP_ID=0, SLURM_JOB_ID=1, SLURM_STEP_NUM_TASKS=2, SLURM_LOCALID=r, SLURM_NODEID=0,
                      SLURM_STEP_TASKS_PER_NODE=2, SLURM_STEP_NODELIST="localhost", SKEIN_MASTER_PORT=other) for r in range(2)]
        for ranks in (torchrun, slurm):
            runs = [Run([find_program("skein_rank_session")], XDG_CONFIG_HOME=home, **env) for env in ranks]
            with runs[0], runs[1]:
                check_ends(*runs)
                for rank, run in enumerate(runs):
                    run.check(run.stdout == wanted(rank, 2) + "\n", "another line")


def slurm_step():
    """A plain main that srun has started several times: the first process is the driver, the others are nodes and leave."""
    with tempfile.TemporaryDirectory(prefix="skein-session-") as home:
        step = dict(SLURM_STEP_ID=0, SLURM_JOB_ID=1, SLURM_STEP_NUM_TASKS=2, SLURM_NODEID=0, SLURM_STEP_TASKS_PER_NODE=2,
                    SLURM_STEP_NODELIST="localhost", SKEIN_MASTER_PORT=free_port(), XDG_CONFIG_HOME=home)
        runs = [Run([find_program("025_plain_main")], SLURM_PROCID=r, SLURM_LOCALID=r, NODE=f"n{r}", **step) for r in range(2)]
        with runs[0], runs[1]:
            check_ends(*runs)
            runs[0].check(runs[0].stdout == (EXAMPLES / "025_plain_main.expected").read_text(), "another output than on one host")
            runs[1].check(runs[1].stdout == "", "a node prints")


def head_and_node():
    """--head and --join of a plain main: it lives there until a signal, and main goes no further."""
    with tempfile.TemporaryDirectory(prefix="skein-session-") as home:
        env = dict(XDG_CONFIG_HOME=home, SKEIN_LOG_LEVEL="warn")
        program = find_program("025_plain_main")
        port = free_port()
        with Run([program, "--head", "--listen", f"127.0.0.1:{port}"], **env) as head:
            head.wait_until(lambda: "skein head: listens on" in head.stdout, "line of the head", SECONDS)
            with Run([program, "--join", f"127.0.0.1:{port}"], **env) as node:
                node.wait_until(lambda: "joined" in node.stdout, "line of the node", SECONDS)
                with Run([program, "--address", f"127.0.0.1:{port}"], **env) as driver:
                    check_ends(driver)
                    driver.check(driver.stdout == (EXAMPLES / "025_plain_main.expected").read_text(), "another output than on one host")
                node.process.send_signal(signal.SIGTERM)
                check_ends(node)
                node.check("49 + 64" not in node.stdout, "a node goes on as a driver")
            head.process.send_signal(signal.SIGTERM)
            check_ends(head)


def bad_command_lines():
    """One line, and the exit code that the program gives."""
    for arguments, code, words in ((["--workers", "x"], 2, "--workers x: not a number"), (["--address", "::x"], 2, "the head's address ::x"),
                                   (["--token-file", "/no/such", "--address", "127.0.0.1:1"], 1, "/no/such")):
        with Run([find_program("025_plain_main"), *arguments]) as run:
            check_ends(run, code=code)
            lines = run.stderr.splitlines()
            run.check(len(lines) == 1 and words in lines[0], "another text")


CASES = [("supervised ranks", supervised_ranks), ("thrown at the start", thrown_at_the_start),
         ("stopped while starting", stopped_while_starting), ("launched ranks", launched_ranks),
         ("a Slurm step", slurm_step), ("head and node", head_and_node), ("bad command lines", bad_command_lines)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

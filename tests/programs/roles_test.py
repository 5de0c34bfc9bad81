#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One program on unlike hosts, by SageMaker's variables: those of the group gpu train, the others help.

    roles_test.py [NAME]
"""
# label: runtime
import contextlib
import json
import pathlib
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, free_port, run_cases  # noqa: E402

SECONDS = 60.0
SLOW_HERE = ("--count", 1000, "--row-us", 500, "--local-us", 5000)
HELPED = ("--helpers", 1, "--on", "role=cpu")


class Job:
    """Hosts on this machine. groups: {"gpu": [names], ...}."""

    def __init__(self, groups, *arguments, **env):
        self.groups, self.arguments, self.env = groups, arguments, env
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        self.home = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="skein-roles-"))
        self.port = free_port()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self, host, *more, **env):
        names = sorted(name for hosts in self.groups.values() for name in hosts)
        group = next(group for group, hosts in self.groups.items() if host in hosts)
        config = dict(current_host=host, current_instance_type="ml.c5.xlarge", current_group_name=group, hosts=names, network_interface_name="eth0",
                      instance_groups=[dict(instance_group_name=g, instance_type="ml.c5.xlarge", hosts=hosts) for g, hosts in self.groups.items()])
        sagemaker = dict(SM_HOSTS=json.dumps(names), SM_CURRENT_HOST=host, SM_RESOURCE_CONFIG=json.dumps(config), SKEIN_MASTER_HOST="127.0.0.1",
                         SKEIN_MASTER_PORT=self.port, XDG_CONFIG_HOME=self.home)
        run = Run([find_program("data_rows"), "--launch", 1, *self.arguments, *more], **{**sagemaker, **self.env, **env})
        return self.stack.enter_context(run)


def check_ends(run, code, what):
    run.check(run.wait(SECONDS) == code, f"exit code {run.process.returncode} of {what}")
    run.check_nothing_left()


def digest(run):
    return re.search(r"^sha256 (\w+)$", run.stdout, re.M).group(1)


def alone(*arguments):
    """What the rows are without a launcher, and without helpers."""
    with Run([find_program("data_rows"), *arguments]) as run:
        check_ends(run, 0, "the program alone")
        return digest(run)


def rows_of_helpers(run):
    return sum(int(n) for n in re.findall(r"^ +\d+@\S+ +(\d+) rows", run.stdout, re.M))


def joins(run):
    return run.stderr.count("helps the ranks, until their job is over")


def wait_helped(run):
    run.wait_until(lambda: "helped\n" in run.stdout, "rows of a helper", SECONDS)


TWO = {"gpu": ["algo-1"], "cpu": ["algo-2"]}


def one_host_helps():
    """Its processes make rows, and end with 0 when the job is over; the bytes are those of a job without."""
    with Job(TWO, *SLOW_HERE, *HELPED) as job:
        helper, rank = job.start("algo-2"), job.start("algo-1")
        check_ends(rank, 0, "the rank")
        check_ends(helper, 0, "the host that helps")
        rank.check("rank 0 of 1\n" in rank.stdout, "another world")
        rank.check(rows_of_helpers(rank) > 0, "the helper has made no rows")
        rank.check(digest(rank) == alone("--count", 1000), "other rows")
        helper.check(joins(helper) == 1 and helper.stdout == "", "it does not say that it helps, or is a rank")


def ranks_of_two_hosts():
    """Ranks are counted among the group that trains, wherever its hosts stand in the list; each finds the head."""
    with Job({"big": ["algo-2", "algo-3"], "cpu": ["algo-1"]}, *SLOW_HERE, *HELPED, SKEIN_TRAIN_GROUP="big") as job:
        helper, second, first = job.start("algo-1"), job.start("algo-3"), job.start("algo-2")
        for number, rank in enumerate((first, second)):
            check_ends(rank, 0, f"rank {number}")
            rank.check(f"rank {number} of 2\n" in rank.stdout, "another world")
            rank.check(digest(rank) == alone("--count", 1000, "--rank", number, "--world", 2), "other rows")
        first.check(rows_of_helpers(first) + rows_of_helpers(second) > 0, "the helper has made no rows")
        check_ends(helper, 0, "the host that helps")


def nobody_waits():
    """A host that helps and does not come holds up nobody."""
    with Job(TWO, "--count", 1000, *HELPED) as job:
        rank = job.start("algo-1")
        check_ends(rank, 0, "the rank")
        rank.check(digest(rank) == alone("--count", 1000) and rows_of_helpers(rank) == 0, "other rows")


def rank_starts_again():
    """It is killed, or fails; the host that helps stays, joins the next head, and helps again."""
    for fails in (False, True):
        with Job(TWO, *SLOW_HERE, *HELPED) as job:
            helper = job.start("algo-2")
            first = job.start("algo-1", *(("--throws", 1) if fails else ()))
            if fails:
                check_ends(first, 1, "the rank that fails")
            else:
                wait_helped(first)
                first.process.kill()
                check_ends(first, -signal.SIGKILL, "the rank that is killed")
            again = job.start("algo-1", "--count", 3000)
            wait_helped(again)
            check_ends(again, 0, "the rank")
            again.check(digest(again) == alone("--count", 3000), "other rows")
            check_ends(helper, 0, "the host that helps")
            helper.check(joins(helper) == 2, "it has not joined twice")


def rank_is_gone():
    """For good: the host that helps says so after the time that it was given, and leaves nothing behind."""
    with Job(TWO, *SLOW_HERE, *HELPED, SKEIN_HELPER_WAIT=2) as job:
        helper, rank = job.start("algo-2", SKEIN_HELPER_WAIT=2), job.start("algo-1")
        wait_helped(rank)
        rank.process.kill()
        check_ends(helper, 1, "the host that helps")
        helper.check("has been gone for 2 s" in helper.stderr and "rank 0 has ended without a word" in helper.stderr, "it does not say why")


def rank_never_comes():
    with Job(TWO, SKEIN_HELPER_WAIT=1) as job:
        helper = job.start("algo-2")
        check_ends(helper, 1, "the host that helps")
        helper.check("host algo-2 (group cpu) cannot help" in helper.stderr and f"127.0.0.1:{job.port + 1}" in helper.stderr, "it does not say why")


def another_token():
    with Job(TWO, "--count", 1000, "--local-us", 5000, *HELPED) as job:
        helper = job.start("algo-2", SKEIN_TOKEN="7" * 64)
        rank = job.start("algo-1", SKEIN_TOKEN="8" * 64)
        check_ends(helper, 1, "the host that helps")
        helper.check("set SKEIN_TOKEN to the same" in helper.stderr, "it does not say what to do")
        check_ends(rank, 0, "the rank")


def stopped():
    """A host that helps may be stopped alone: the ranks go on. When rank 0 is stopped the job is over."""
    with Job({"gpu": ["algo-1"], "cpu": ["algo-2", "algo-3"]}, "--count", 1000000, *SLOW_HERE[2:], *HELPED) as job:
        helpers, rank = [job.start("algo-2"), job.start("algo-3")], job.start("algo-1")
        wait_helped(rank)
        helpers[0].wait_until(lambda: joins(helpers[0]) == 1, "its head", SECONDS)
        helpers[0].process.send_signal(signal.SIGTERM)
        check_ends(helpers[0], 0, "the host that is stopped")
        helpers[1].wait_until(lambda: joins(helpers[1]) == 1, "its head", SECONDS)
        rank.check(rank.process.poll() is None, "the rank has ended with it")
        rank.process.send_signal(signal.SIGTERM)
        check_ends(rank, 143, "the rank")
        check_ends(helpers[1], 0, "the other host that helps")


def bad_input():
    for env, words in ((dict(SKEIN_TRAIN_GROUP="tpu"), "SKEIN_TRAIN_GROUP=tpu"), (dict(SM_RESOURCE_CONFIG="{"), "SM_RESOURCE_CONFIG"),
                       (dict(SKEIN_MASTER_PORT=65535), "SKEIN_MASTER_PORT"), (dict(SKEIN_HELPER_WAIT="soon"), "SKEIN_HELPER_WAIT='soon'")):
        with Job(TWO, **env) as job:
            helper = job.start("algo-2")
            check_ends(helper, 1 if "SKEIN_HELPER_WAIT" in env or "SKEIN_MASTER_PORT" in env else 2, "the host that helps")
            helper.check(words in helper.stderr, f"no word of {words}")


CASES = [("one host helps", one_host_helps), ("ranks of two hosts", ranks_of_two_hosts), ("nobody waits", nobody_waits),
         ("a rank starts again", rank_starts_again), ("a rank is gone", rank_is_gone), ("a rank never comes", rank_never_comes),
         ("another token", another_token), ("stopped", stopped), ("bad input", bad_input)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

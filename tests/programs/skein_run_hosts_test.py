#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train
"""`skein run --nnodes` starts programs that are not elastic on several hosts; here each host is one supervisor on this machine.

skein_run_hosts_test.py [CASE]
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import other_build  # noqa: E402
from program import RANK, TINY, Run, find_program, free_port, run_cases, write_text  # noqa: E402

SKEIN = find_program("skein")
TOKEN = "11" * 32


class Hosts:
    """`skein run` on several hosts, in a folder that they share; the first one is at the endpoint."""

    def __init__(self, body="", nnodes=2, ranks=2, options=(), command=None, at=None):
        self.body, self.nnodes, self.ranks, self.options, self.command = body, nnodes, ranks, options, command
        self.endpoint = at or f"127.0.0.1:{free_port()}"

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="skein-test-")
        self.folder = pathlib.Path(self.scratch.name)
        self.program = self.folder / "rank.py"
        self.program.write_text(RANK + self.body)
        self.stack = contextlib.ExitStack()
        self.runs = []
        return self

    def __exit__(self, *how):
        self.stack.close()
        self.scratch.cleanup()

    def start(self, *options, ranks=None, nnodes=None, job="J", command=None, name="127.0.0.1", **env):
        command = command or self.command or [sys.executable, "-S", self.program, self.folder]
        run = Run([SKEIN, "run", "--nnodes", nnodes or self.nnodes, "--nproc-per-node", ranks or self.ranks, "--rdzv-endpoint", self.endpoint,
                   "--rdzv-id", job, "--local-addr", name, *self.options, *options, *command], SKEIN_TOKEN=TOKEN, **env)
        self.stack.enter_context(run)
        self.runs.append(run)
        return run

    def start_all(self, many=2, *options, **how):
        """The first one listens before the second comes, so that it is the first host."""
        first = self.start(*options, **how)
        first.wait_until(lambda: "waits at" in first.stderr, "the first host at the endpoint", 60)
        return [first] + [self.start(*options, **how) for _ in range(many - 1)]

    def until(self, *names):
        for name in names:
            self.runs[0].wait_until(lambda name=name: (self.folder / name).exists(), name, 60)

    def note(self, name):
        (self.folder / name).write_text("")

    def text(self, name):
        return (self.folder / name).read_text()

    def end(self, *codes, seconds=60):
        for run, code in zip(self.runs, codes):
            got = run.wait(seconds)
            run.check(got == code, f"exit code {got}, not {code}")
        for run in self.runs:
            run.check_nothing_left()


def said(run, *texts):
    for text in texts:
        run.check(re.search(text, run.stderr), f"no {text!r} in what it says")


# ---- any program ---------------------------------------------------------------------------------

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")


def place_in_the_environment():
    with Hosts(f"import json\nnote('rank%d' % rank, json.dumps({{n: os.environ[n] for n in {NAMES!r}}}))") as it:
        first, second = it.start_all()
        it.end(0, 0)
        seen = [json.loads(it.text(f"rank{rank}")) for rank in range(4)]
        ports = {mine.pop("MASTER_PORT") for mine in seen}
        first.check(len(ports) == 1 and int(ports.pop()) > 0, "no port, or several")
        for rank, mine in enumerate(seen):
            first.check(mine == {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(rank // 2),
                                 "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0",
                                 "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "J"}, f"rank {rank} is told {mine}")
        for run in (first, second):
            said(run, r"skein run: world of 2 hosts, 4 ranks: 127.0.0.1 has ranks 0 to 1, 127.0.0.1 has ranks 2 to 3\n")


def unlike_numbers():
    """Each host brings as many ranks as it says."""
    with Hosts("note('rank%d' % rank, '%s %s' % (size, os.environ['LOCAL_WORLD_SIZE']))") as it:
        first = it.start(ranks=1)
        first.wait_until(lambda: "waits at" in first.stderr, "the first host", 60)
        it.start(ranks=3)
        it.end(0, 0)
        first.check([it.text(f"rank{rank}") for rank in range(4)] == ["4 1", "4 3", "4 3", "4 3"], "other ranks")


def all_start_again():
    """A rank fails on one host: those of all hosts end and start again."""
    with Hosts("note('there%d.%d' % (rank, attempt), os.getpid())\nif attempt: sys.exit(0)\nif rank == 3:\n    until('go'); sys.exit(3)\nsignal.pause()") as it:
        runs = it.start_all()
        it.until(*(f"there{rank}.0" for rank in range(4)))
        it.note("go")
        it.end(0, 0)
        for run in runs:
            said(run, r"skein run: rank 3 \(pid \d+ at 127.0.0.1\) exited with 3; all ranks start again \(restart 1 of 3\)\n")
            run.check(run.stderr.count("start again") == 1, "restarted more than once")
        for rank in range(4):
            runs[0].check(it.text(f"there{rank}.0") != it.text(f"there{rank}.1"), f"rank {rank} was not started again")


def done_ones_too():
    """Who is done waits for the others: what fails elsewhere starts it again."""
    with Hosts("note('there%d.%d' % (rank, attempt))\nif rank == 1 and not attempt:\n    until('go'); sys.exit(3)", ranks=1) as it:
        it.start_all()
        it.until("there0.0", "there1.0")
        it.note("go")
        it.end(0, 0)
        it.runs[0].check((it.folder / "there0.1").exists(), "who was done was not started again")


def code_of_the_failing_rank():
    with Hosts("sys.exit(7) if rank == 3 else signal.pause()", options=("--max-restarts", 1)) as it:
        it.start_all()
        it.end(1, 7)
        for run in it.runs:
            said(run, r"restart 1 of 1", r"error: rank 3 \(pid \d+ at 127.0.0.1\) exited with 7; all ranks were started again 1 time already")
    with Hosts("sys.exit(2) if rank == 3 else signal.pause()") as it:    # a wrong command line is not tried again
        it.start_all()
        it.end(1, 2)
        it.runs[1].check("start again" not in it.runs[1].stderr, "it was tried again")


def ignores_sigterm():
    with Hosts("""if rank == 3:
    until('deaf'); sys.exit(5)
if rank == 0:
    signal.signal(signal.SIGTERM, lambda *_: note('heard'))
    note('deaf')
while True: signal.pause()""", options=("--stop-grace", 1, "--max-restarts", 0)) as it:
        it.start_all()
        it.end(1, 5)
        it.runs[0].check((it.folder / "heard").exists(), "it was not asked before it was killed")


def stopped():
    """SIGTERM to one host stops the job where the others are too few."""
    for at in (0, 1):
        with Hosts("signal.signal(signal.SIGTERM, lambda *_: (note('heard%d' % rank), os._exit(143)))\nnote('there%d' % rank)\nwhile True: signal.pause()") as it:
            runs = it.start_all()
            it.until(*(f"there{rank}" for rank in range(4)))
            runs[at].process.send_signal(signal.SIGTERM)
            it.end(143, 143)
            it.until(*(f"heard{rank}" for rank in range(4)))


def joins_and_leaves():
    """--nnodes 1:3: each host that comes or goes is a new world of all ranks."""
    with Hosts("note('there%d of %d' % (rank, size))\nif size == 3: until('three')\nuntil('done' if (here / 'gone').exists() else 'never')",
               nnodes="1:3", ranks=1) as it:
        first = it.start()
        it.until("there0 of 1")
        second = it.start()
        it.until("there0 of 2", "there1 of 2")
        said(first, r"host 127.0.0.1 joins; all ranks start again on 2 hosts, 2 ranks")
        it.start()
        it.until("there0 of 3", "there1 of 3", "there2 of 3")
        for name in ("there0 of 2", "there1 of 2"):
            (it.folder / name).unlink()
        it.note("gone")
        second.process.send_signal(signal.SIGTERM)
        it.until("there0 of 2", "there1 of 2")
        it.note("done")
        it.note("three")
        it.end(0, 143, 0)
        first.check("restart 1 of" not in first.stderr, "a planned change counts")


def supervisor_killed():
    """--nnodes 1:2: the other one goes on alone."""
    with Hosts("note('there%d of %d' % (rank, size), attempt)\nif size == 4 or not attempt: signal.pause()", nnodes="1:2") as it:
        first, second = it.start_all()
        it.until("there0 of 4", "there3 of 4")
        second.process.kill()
        it.end(0, -signal.SIGKILL)
        said(first, r"host 127.0.0.1 is lost.*; all ranks start again on 1 host, 2 ranks.* \(restart 1 of 3\)")
        first.check(it.text("there1 of 2") == "1", "no restart is counted")


def coordinator_killed():
    """Nobody takes over without etcd: the others say how to go on."""
    with Hosts("note('there%d' % rank)\nsignal.pause()", nnodes="1:2") as it:
        first, second = it.start_all()
        it.until("there0", "there3")
        first.process.kill()
        it.end(-signal.SIGKILL, 1)
        said(second, r"error: the coordinator at tcp:127.0.0.1:\d+ is gone")


def stands_still():
    """A supervisor that is stopped is a lost host; when it goes on, it comes as a new one, and its old ranks are gone."""
    with Hosts("note('there%d of %d' % (rank, size), os.getpid())\nuntil('done')", nnodes="1:2", ranks=1, options=("--rdzv-conf", "silence=1")) as it:
        first, second = it.start_all()
        it.until("there0 of 2", "there1 of 2")
        old = int(it.text("there1 of 2"))
        (it.folder / "there0 of 1").unlink(missing_ok=True)
        second.process.send_signal(signal.SIGSTOP)
        it.until("there0 of 1")
        (it.folder / "there1 of 2").unlink()
        second.process.send_signal(signal.SIGCONT)
        it.until("there1 of 2")
        first.check(old not in second.children(), "the old rank still runs")
        it.note("done")
        it.end(0, 0)
        said(first, r"host 127.0.0.1 is lost: .*is silent.*\(restart 1 of 3\)")


def both_supervisors_killed():
    with Hosts("note('there%d' % rank)\nsignal.pause()") as it:
        runs = it.start_all()
        it.until(*(f"there{rank}" for rank in range(4)))
        for run in runs:
            run.process.kill()
        it.end(-signal.SIGKILL, -signal.SIGKILL)


# ---- bad input -----------------------------------------------------------------------------------

def too_few():
    with Hosts("note('started')", options=("--rdzv-conf", "join_timeout=1")) as it:
        it.start()
        it.end(1)
        said(it.runs[0], r"waits at 127.0.0.1:\d+ for 2 hosts", r"error: fewer than 2 hosts were there for 1 s", "--nnodes LEAST:MOST")
        it.runs[0].check(not (it.folder / "started").exists(), "something was started")


def nobody_there():
    with Hosts(options=("--rdzv-conf", "join_timeout=1"), at="192.0.2.1:29400") as it:
        it.start(name="127.0.0.1")
        it.end(1)
        said(it.runs[0], r"nobody is at tcp:192.0.2.1:29400 for 1 s.*start skein run on that host, too")


def other_job():
    with Hosts("note('there%d' % rank)\nuntil('go')", nnodes="1:2") as it:
        first = it.start()
        it.until("there0", "there1")
        second = it.start(job="K")
        second.check(second.wait(60) == 2, "it is a usage error")
        said(second, r"is of job 'K', this is job 'J'")
        third = it.start(nnodes="1:3")
        third.check(third.wait(60) == 2, "it is a usage error")
        said(third, r"has a job of 1 to 3 hosts, here it is one of 1 to 2")
        it.note("go")
        it.end(0)
        first.check("start again" not in first.stderr, "the others were disturbed")


def elastic_worlds(run):
    return [[int(pid) for pid in pids.split()] for pids in re.findall(r": pid ((?:\d+ ?)+)", run.stderr)]


def elastic_hosts(*before, late=False):
    """A program of elastic workers trains on as ever: who lives goes on, in its process."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        folder = pathlib.Path(name)
        (folder / "asked").mkdir()
        program = [*before, find_program("skein_elastic"), "--runs", folder, "--asked", folder / "asked"]
        with Hosts(command=program, nnodes="1:2" if late else 2, ranks=1) as it:
            first = it.start()
            if late:
                first.wait_until(lambda: elastic_worlds(first), "a world of one", 60)
            second = it.start()

            def worlds():    # of two; rank 0 says it, on its host
                return [world for world in elastic_worlds(first) + elastic_worlds(second) if len(world) == 2]
            first.wait_until(worlds, "a world of 2", 60)
            victim, = set(worlds()[0]) & set(second.children())
            other, = set(worlds()[0]) & set(first.children())
            os.kill(victim, signal.SIGKILL)
            first.wait_until(lambda: any(victim not in world for world in worlds()), "another world of 2", 60)
            first.check(all(other in world for world in worlds()), "who lived was started again")
            first.check("start again" not in first.stderr, "all have started again")
            (folder / "asked" / "stop").write_text("")
            it.end(0, 0)


def other_builds():
    """Two builds of one program would train apart: both hosts say which rank has another one."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        training = Training(name, find_program("110_gpt_ddp"), steps=10)
        other = other_build(find_program("110_gpt_ddp"), pathlib.Path(name, "other"))
        with Hosts(command=[*training.command, "--run", "unlike"], ranks=1) as it:
            it.start_all(1)
            it.start(command=[other, *training.command[1:], "--run", "unlike"])
            it.end(2, 2)
            for run in it.runs:
                said(run, r"error: .*the ranks' settings differ: rank \d has build [0-9a-f]{16}, rank \d has [0-9a-f]{16}; start the same file of the program on every host")
                run.check("start again" not in run.stderr, "it was tried again")


def other_build_of_elastic_workers():
    """Those of the other host are refused, and the first ones go on alone."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        folder = pathlib.Path(name)
        (folder / "asked").mkdir()
        arguments = ["--runs", folder, "--asked", folder / "asked"]
        other = other_build(find_program("skein_elastic"), folder / "other")
        with Hosts(command=[find_program("skein_elastic"), *arguments], nnodes="1:2", ranks=1) as it:
            first = it.start()
            first.wait_until(lambda: elastic_worlds(first), "a world of one", 60)
            second = it.start(command=[other, *arguments])
            second.check(second.wait(60) == 2, "it is no usage error")
            said(second, r"is unlike the others: the ranks' settings differ: rank \d+ has build [0-9a-f]{16}, the others have [0-9a-f]{16}; start the same file")
            (folder / "asked" / "stop").write_text("")
            it.end(0)
            first.check(len(elastic_worlds(first)) == 1, "it was disturbed")


def one_host_more():
    """A host that the others do not need says so, and takes the place of one that is lost."""
    with Hosts("note('there%d.%d' % (rank, attempt), os.getpid())\nuntil('done')", ranks=1) as it:
        first, second = it.start_all()
        it.until("there0.0", "there1.0")
        third = it.start()
        third.wait_until(lambda: "the job has places for its 2 hosts: this host waits until one of them is free" in third.stderr, "why it waits", 60)
        first.wait_until(lambda: "host 127.0.0.1 has come; the job has places for its 2 hosts: it waits" in first.stderr, "word of it", 60)
        second.process.kill()
        it.until("there0.1", "there1.1")
        first.check(int(it.text("there1.1")) in third.children(), "its rank is elsewhere")
        it.note("done")
        it.end(0, -signal.SIGKILL, 0)


def unlike_programs():
    with Hosts("note('there%d' % rank)\nuntil('go')", nnodes="1:2") as it:
        first = it.start()
        it.until("there0", "there1")
        second = it.start(command=[find_program("skein_elastic"), "--runs", it.folder, "--asked", it.folder])
        second.check(second.wait(60) == 2, "it is a usage error")
        said(second, "the program of this host has elastic workers, and the hosts at tcp:127.0.0.1:\\d+ run one whose ranks all start again")
        it.note("go")
        it.end(0)
        first.check("start again" not in first.stderr, "the others were disturbed")


def no_such_program():
    """It is said where it is so; the others wait for another host."""
    with Hosts("note('there%d' % rank)") as it:
        it.start()
        second = it.start(command=["./nothing-here"])
        second.check(second.wait(60) == 2, "it is a usage error")
        said(second, "error: .*nothing-here")
        it.start()
        it.end(0, 2, 0)


def files_of_hosts():
    """Each host keeps and shows its own ranks; options count them as the host does, files as the world does."""
    with Hosts("print('out', rank, attempt, flush=True)\nnote('printed%d' % rank)\n"
               "if rank == 3 and not attempt:\n    for other in range(3): until('printed%d' % other)\n    sys.exit(3)") as it:
        logs = it.folder / "logs"
        runs = it.start_all(2, "-r", "0:3", "-t", "1:1", "--log-dir", logs)
        it.end(0, 0)
        for rank, attempt in ((rank, attempt) for rank in range(4) for attempt in (0, 1)):
            found = (logs / f"J/attempt_{attempt}/{rank}/stdout.log").read_text()
            runs[0].check(found == f"out {rank} {attempt}\n", f"attempt {attempt} of rank {rank}: {found!r}")
        for run, rank in zip(runs, (1, 3)):
            run.check(run.stdout == f"(rank {rank}) out {rank} 0\n(rank {rank}) out {rank} 1\n", "printed otherwise")
    with Hosts(command=[find_program("skein_elastic")]) as it:
        run = it.start("--local-ranks-filter", 0)
        run.check(run.wait(60) == 2, "it is a usage error")
        said(run, "not supported: -r, -t, --log-dir and --local-ranks-filter for a program of elastic workers")


def named_by_its_master():
    """torchrun's static meeting: the host of rank 0 is named, and no endpoint."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name, contextlib.ExitStack() as stack:
        program = pathlib.Path(name, "rank.py")
        program.write_text(RANK + "note('rank%d' % rank, size)")
        runs = [stack.enter_context(Run([SKEIN, "run", "--nnodes", 2, "--node-rank", host, "--rdzv-backend", "static", "--master-addr", "127.0.0.1",
                                         "--master-port", port, "--local-addr", "127.0.0.1", sys.executable, "-S", program, name], SKEIN_TOKEN=TOKEN))
                for host in (0, 1)]
        for run in runs:
            run.check(run.wait(60) == 0, "failed")
        runs[0].check([pathlib.Path(name, f"rank{rank}").read_text() for rank in (0, 1)] == ["2", "2"], "other ranks")
        for run in runs:
            run.check("--master" not in run.stderr, "something is said of it")
            run.check_nothing_left()


# ---- trainings -----------------------------------------------------------------------------------

class Training:
    """A run of an example on two hosts, beside the same one started alone."""

    def __init__(self, folder, *program, steps=60):
        self.folder, self.text = pathlib.Path(folder), write_text(folder)
        self.command = [*program, *TINY, "--text", self.text, "--runs", self.folder / "runs", "--steps", steps, "--checkpoint-every", 10]

    def curve(self, name):
        path = self.folder / "runs" / name / "metrics.csv"
        return path.read_bytes() if path.exists() else b""

    def alone(self):
        with Run([*self.command, "--run", "alone", "--workers", 2]) as run:
            run.check(run.wait() == 0, "the undisturbed run failed")
        return self.curve("alone")

    def killed(self, name, host):
        with Hosts(command=[*self.command, "--run", name], ranks=1) as it:
            it.start_all()
            it.runs[0].wait_until(lambda: self.curve(name).count(b"\n") > 25, "25 steps")
            os.kill(it.runs[host].children()[-1], signal.SIGKILL)
            it.end(0, 0, seconds=240)
            for run in it.runs:
                lines = [line for line in run.stderr.splitlines() if "start again" in line]
                run.check(len(lines) == 1 and re.search(rf"rank {host} \(pid \d+ at 127.0.0.1\) killed by signal 9 \(SIGKILL\); "
                                                        r"all ranks start again \(restart 1 of 3\)", lines[0]), f"it says {lines}")


def goes_on(program, *options):
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program(program), *options)
        whole = it.alone()
        for host in (0, 1):
            it.killed(f"killed{host}", host)
            assert it.curve(f"killed{host}") == whole, "another metrics.csv"


def training_on_other_hosts():
    """--nnodes 1:2: a host joins, and is lost; each time all go on at the newest checkpoint, on another number of ranks."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        training = Training(folder, find_program("120_gpt_fsdp"), "--strategy", "fsdp", steps=400)
        with Hosts(command=[*training.command, "--run", "few"], nnodes="1:2", ranks=1) as it:
            first = it.start()
            first.wait_until(lambda: training.curve("few").count(b"\n") > 5, "5 steps")
            second = it.start()
            first.wait_until(lambda: "FSDP" in first.stderr.partition("start again on 2 hosts")[2], "ranks of two hosts")
            said(first, "host 127.0.0.1 joins; all ranks start again on 2 hosts, 2 ranks")
            rows = training.curve("few").count(b"\n")
            first.wait_until(lambda: training.curve("few").count(b"\n") > rows + 25, "further steps")
            second.process.kill()
            it.end(0, -signal.SIGKILL, seconds=240)
            said(first, r"is lost.*; all ranks start again on 1 host, 1 rank: .* \(restart 1 of 3\)")
            first.check((first.stdout + first.stderr).count("resumed after step") == 2, "it has begun anew")
            steps = [line.split(b",")[0] for line in training.curve("few").splitlines()[1:]]
            first.check(steps == [b"%d" % step for step in range(1, 401)], "not one row for each step")


def training_is_stopped():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        training = Training(folder, find_program("110_gpt_ddp"), steps=100000)
        with Hosts(command=[*training.command, "--run", "stopped"], ranks=1) as it:
            it.start_all()
            it.runs[0].wait_until(lambda: training.curve("stopped").count(b"\n") > 3, "3 steps")
            it.runs[1].process.send_signal(signal.SIGTERM)
            it.end(143, 143)
            it.runs[0].check(list((training.folder / "runs" / "stopped" / "checkpoints").glob("step-*")), "nothing was saved")


run_cases([("place in the environment", place_in_the_environment), ("unlike numbers", unlike_numbers), ("all start again", all_start_again),
           ("done ones too", done_ones_too), ("code of the failing rank", code_of_the_failing_rank), ("ignores SIGTERM", ignores_sigterm),
           ("stopped", stopped), ("joins and leaves", joins_and_leaves), ("supervisor killed", supervisor_killed),
           ("coordinator killed", coordinator_killed), ("stands still", stands_still),
           ("both supervisors killed", both_supervisors_killed), ("too few", too_few), ("nobody there", nobody_there), ("other job", other_job),
           ("files of hosts", files_of_hosts), ("named by its master", named_by_its_master), ("no such program", no_such_program), ("unlike programs", unlike_programs), ("other builds", other_builds), ("other build of elastic workers", other_build_of_elastic_workers), ("one host more", one_host_more), ("elastic hosts", elastic_hosts),
           ("elastic by a script", lambda: elastic_hosts("sh", "-c", '"$@"; exit $?', "sh")),
           ("elastic by a script, late", lambda: elastic_hosts("sh", "-c", '"$@"; exit $?', "sh", late=True)), ("ddp goes on", lambda: goes_on("110_gpt_ddp")),
           ("fsdp goes on", lambda: goes_on("120_gpt_fsdp", "--strategy", "fsdp")), ("training on other hosts", training_on_other_hosts),
           ("training is stopped", training_is_stopped)],
          sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: train
"""`skein run` starts every kind of program on one host: any program, trainings of fixed ranks, elastic ones.

skein_run_test.py [CASE]
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import RANK, TINY, Run, find_program, run_cases, write_text  # noqa: E402

SKEIN = find_program("skein")


class Ranks:
    """`skein run` of a small Python program, in a folder of its own."""

    def __init__(self, body, *options, ranks=2, before=(), **env):
        self.body, self.options, self.ranks, self.before, self.env = body, options, ranks, before, env

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="skein-test-")
        self.folder = pathlib.Path(self.scratch.name)
        program = self.folder / "rank.py"
        program.write_text(RANK + self.body)
        self.run = Run([*self.before, SKEIN, "run", "--standalone", "--nproc-per-node", self.ranks, *self.options, sys.executable, "-S", program, self.folder],
                       **self.env)
        return self

    def __exit__(self, *how):
        self.run.__exit__(*how)
        self.scratch.cleanup()

    def until(self, *names):
        for name in names:
            self.run.wait_until(lambda name=name: (self.folder / name).exists(), name, 30)

    def note(self, name):
        (self.folder / name).write_text("")

    def text(self, name):
        return (self.folder / name).read_text()

    def ends(self, code, *texts):
        got = self.run.wait(30)
        self.run.check(got == code, f"exit code {got}, not {code}")
        for text in texts:
            self.run.check(re.search(text, self.run.stderr), f"no {text!r} in what it says")
        self.run.check_nothing_left()


# ---- any program ---------------------------------------------------------------------------------

def place_in_the_environment():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
    with Ranks(f"import json\nnote('rank%d' % rank, json.dumps({{n: os.environ[n] for n in {names!r}}}))", "--rdzv-id", "J", "--max-restarts", 5) as it:
        it.ends(0)
        seen = [json.loads(it.text(f"rank{rank}")) for rank in range(2)]
        for rank, mine in enumerate(seen):
            port = mine.pop("MASTER_PORT")
            it.run.check(int(port) > 0, f"no port: {port}")
            it.run.check(mine == {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
                                  "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "5",
                                  "TORCHELASTIC_RUN_ID": "J"}, f"rank {rank} is told {mine}")


def all_start_again():
    with Ranks("note('there%d.%d' % (rank, attempt), os.getpid())\nif attempt: sys.exit(0)\nif rank: until('there0.0'); sys.exit(3)\nsignal.pause()") as it:
        it.ends(0, r"skein run: rank 1 \(pid \d+\) exited with 3; all ranks start again \(restart 1 of 3\)")
        it.run.check(it.text("there0.0") != it.text("there0.1"), "rank 0 was not started again")
        it.run.check(it.run.stderr.count("start again") == 1, "restarted more than once")


def code_of_the_failing_rank():
    with Ranks("sys.exit(7 if rank else 0)", "--max-restarts", 0) as it:
        it.ends(7, r"error: rank 1 \(pid \d+\) exited with 7\n$")
    with Ranks("if rank: signal.pause()\nos.kill(os.getpid(), signal.SIGSEGV)", "--max-restarts", 1) as it:
        it.ends(128 + signal.SIGSEGV, r"restart 1 of 1", r"error: rank 0 \(pid \d+\) killed by signal 11 \(SIGSEGV\).*\n$")
    with Ranks("sys.exit(2)") as it:    # a wrong command line is not tried again
        it.ends(2, r"error: rank \d \(pid \d+\) exited with 2\n$")
        it.run.check("start again" not in it.run.stderr, "it was tried again")


def some_end_earlier():
    """Who ends with 0 while others run is done; they are left alone."""
    with Ranks("note('there%d' % rank, os.getpid())\nif rank: until('go')") as it:
        it.until("there0", "there1")
        pid = int(it.text("there0"))
        it.run.wait_until(lambda: pid not in it.run.children(), "the end of rank 0", 30)
        it.run.check(it.run.process.poll() is None, "the job has ended")
        it.note("go")
        it.ends(0)


def ignores_sigterm():
    with Ranks("""if rank:
    until('deaf'); sys.exit(5)
signal.signal(signal.SIGTERM, lambda *_: note('heard'))
note('deaf')
while True: signal.pause()""", "--stop-grace", 1, "--max-restarts", 0) as it:
        it.ends(5, r"rank 1 \(pid \d+\) exited with 5")
        it.run.check((it.folder / "heard").exists(), "it was not asked before it was killed")


def leaves_others_behind():
    """A rank forks, closes all its files, and ends with 0 while its child goes on: nothing is left of it."""
    with Ranks("os.closerange(0, 64)\nif os.fork() == 0: signal.pause()\nnote('done%d' % rank)") as it:
        it.ends(0)
        it.run.check((it.folder / "done1").exists(), "it did not come to its end")


def more_ranks_than_processors():
    ranks = 2 * len(os.sched_getaffinity(0)) + 1
    with Run([SKEIN, "run", "--nproc_per_node", ranks, "--no-python", "true"]) as run:
        run.check(run.wait(30) == 0 and not run.stderr, "it is no error")
        run.check_nothing_left()


def stopped():
    for number in (signal.SIGINT, signal.SIGTERM):
        with Ranks("note('there%d' % rank)\nsignal.pause()") as it:
            it.until("there0", "there1")
            it.run.process.send_signal(number)
            it.ends(128 + number)
    with Ranks("signal.signal(signal.SIGTERM, lambda *_: note('heard%d' % rank))\nnote('there%d' % rank)\nwhile True: signal.pause()") as it:
        it.until("there0", "there1")
        it.run.process.send_signal(signal.SIGTERM)
        it.until("heard0", "heard1")
        it.run.process.send_signal(signal.SIGTERM)    # the second one kills
        it.ends(128 + signal.SIGTERM)


def outlives_its_terminal():
    """Under nohup SIGHUP is ignored, and stays so."""
    hears = "note('ignores%d' % rank, signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\nnote('there%d' % rank)\nuntil('go')"
    with Ranks(hears, before=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]) as it:
        it.until("there0", "there1")
        it.run.process.send_signal(signal.SIGHUP)
        it.note("go")
        it.ends(0)
        it.run.check(it.text("ignores0") == it.text("ignores1") == "True", "ranks do not ignore it")


def says_nothing_to_nobody():
    """Where its notices cannot be written the ranks go on."""
    body = "note('there%d.%d' % (rank, attempt))\nif attempt == 0 and rank == 1: sys.exit(3)"
    with Ranks(body, "--max-restarts", 1, before=["sh", "-c", 'exec "$@" 2> /dev/full', "sh"]) as it:
        it.ends(0)
        it.until("there0.1", "there1.1")


def two_at_once():
    """Jobs of one host meet at places of their own."""
    body = "note('port%d' % rank, os.environ['MASTER_PORT'])\nuntil('go')"
    with Ranks(body) as one, Ranks(body) as other:
        for it in (one, other):
            it.until("port0", "port1")
        for it in (one, other):
            it.note("go")
            it.ends(0)
        one.run.check(one.text("port0") == one.text("port1") != other.text("port0"), "one place for two jobs, or two for one")


def killed_itself():
    with Ranks("note('there%d' % rank)\nsignal.pause()") as it:
        it.until("there0", "there1")
        it.run.process.kill()
        it.ends(-signal.SIGKILL)


def wrong_programs():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        text = pathlib.Path(name, "text")
        text.write_text("no program\n")
        mode = pathlib.Path(name, "mode")
        mode.write_text("no program\n")
        mode.chmod(0o755)
        for program, code, said in (("./nothing-here", 2, "No such file"), (text, 2, "Permission denied"), (mode, 1, "Exec format error")):
            with Run([SKEIN, "run", "--standalone", "--nproc-per-node", 2, program]) as run:
                run.check(run.wait(30) == code, f"exit code, not {code}")
                run.check(said in run.stderr and str(program) in run.stderr, f"no {said!r}, or not of what")
                run.check(run.stderr.count("\n") == 1, "more than one line")
                run.check_nothing_left()


def options():
    for given, *texts in ((["--nproc-per-node", "many"], "cpu, gpu or auto"), (["-m", "module"], "not supported: -m", "python3 -m MODULE"),
                          (["--master-port", "many"], "--master-port"), (["-r", "4"], "-r 4", "RANK:N"),
                          (["-t", "0:1,9:3"], "-t 0:1,9:3: there is no rank 9", "0 to 0"),
                          (["--local-ranks-filter", "0,x"], "--local-ranks-filter 0,x: which ranks?"), (["--local-ranks-filter", "3"], "there is no rank 3"),
                          (["--numa-binding", "node"], "not supported: --numa-binding", "numactl")):
        with Run([SKEIN, "run", *given, "true"], SKEIN_TOKEN="11" * 32) as run:
            run.check(run.wait(30) == 2, "it is a usage error")
            for text in texts:
                run.check(text in run.stderr, f"no {text!r} in what it says")
    # Of torchrun's variables the command line goes first; one that cannot be is refused as its option is.
    with Run([SKEIN, "run", "--rdzv-id", "a", "sh", "-c", "echo $WORLD_SIZE-$TORCHELASTIC_RUN_ID"], PET_NPROC_PER_NODE="3", PET_RDZV_ID="b", PET_NNODES="1") as run:
        run.check(run.wait(30) == 0 and run.stdout.split() == ["3-a"] * 3, "another number of ranks, or name")
    with Run([SKEIN, "run", "--nproc-per-node", 2, "--master-addr", "nowhere", "--master-port", 29500, "sh", "-c", "echo $MASTER_ADDR"]) as run:
        run.check(run.wait(30) == 0 and run.stdout.split() == ["127.0.0.1"] * 2, "another host of rank 0")
        run.check("--master-addr means nothing here: the ranks of one host meet on it" in run.stderr, "nothing is said of --master-addr")
        run.check("--master-port means nothing here: MASTER_PORT is a free port, another one at each start" in run.stderr, "nor of --master-port")
    for name, value, text in (("PET_NPROC_PER_NODE", "many", "cpu, gpu or auto"), ("PET_MASTER_PORT", "h", "--master-port"), ("PET_NNODES", "x", "x")):
        with Run([SKEIN, "run", "true"], **{name: value}) as run:
            run.check(run.wait(30) == 2 and text in run.stderr, f"{name}={value} is taken")
    with Run([SKEIN, "run", "-r", "3", "true"], TMPDIR="/dev/null") as run:
        run.check(run.wait(30) == 2 and "make log folder" in run.stderr and "--log-dir" in run.stderr, "no word of a folder that cannot be")
    with Run([SKEIN, "run", "--standalone", "--nproc-per-node", "gpu", "true"], CUDA_VISIBLE_DEVICES="") as run:
        run.check(run.wait(30) == 2 and "this host shows no gpu" in run.stderr, "a gpu?")
    with Run([SKEIN, "run", "--standalone", "--nproc-per-node", "auto", "--monitor-interval", "5", "sh", "-c", "echo $WORLD_SIZE"],
             CUDA_VISIBLE_DEVICES="") as run:
        run.check(run.wait(30) == 0, "failed")
        sizes = run.stdout.split()
        run.check(sizes and sizes == [str(len(sizes))] * len(sizes), f"sizes: {sizes}")
        run.check("--monitor-interval means nothing here: the kernel tells the end of a rank at once" in run.stderr, "nothing is said")


# Of torchrun's pages and its users' scripts, for one host.
LINES = ("--standalone --nproc-per-node=2", "--standalone --nnodes=1 --nproc_per_node=2", "--nproc_per_node 2 --no_python", "--nnodes=1:1 --nproc-per-node=2 --max_restarts 0",
         "--nnodes=1 --nproc-per-node=2 --max-restarts=3 --rdzv-id=100 --rdzv-backend=c10d --rdzv-endpoint=localhost:0",
         "--standalone --nproc-per-node=2 --rdzv-conf=timeout=900,join_timeout=60", "--standalone --nproc-per-node=2 --local-ranks-filter=0 --tee=3 --log-dir=LOGS",
         "--standalone --nproc-per-node=2 --redirects=3 --log_dir LOGS --rdzv_id a", "--standalone --nproc-per-node=2 --run-path --node_rank=0 --shutdown-timeout 60",
         "--standalone --nproc-per-node=2 --monitor-interval=1 --start-method=spawn --role=trainer")


def lines_of_torchrun():
    """Each for a small program, a training with DDP and one with FSDP."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        folder = pathlib.Path(name)
        small = folder / "rank.py"
        small.write_text(RANK + "note('rank%d' % rank, os.environ['WORLD_SIZE'])")
        trainings = [Training(folder, find_program("110_gpt_ddp")), Training(folder, find_program("120_gpt_fsdp"), "--strategy", "fsdp")]
        for number, line in enumerate(LINES):
            options = line.replace("LOGS", str(folder / f"logs{number}")).split()
            with Run([SKEIN, "run", *options, sys.executable, "-S", small, folder]) as run:
                run.check(run.wait(30) == 0 and all((folder / f"rank{r}").read_text() == "2" for r in (0, 1)), line)
            for each, training in enumerate(trainings):
                run_name = f"run{number}.{each}"
                with Run([SKEIN, "run", *options, *training.command, "--steps", 4, "--run", run_name]) as run:
                    run.check(run.wait(60) == 0, line)
                    how = json.loads((folder / "runs" / run_name / "result.json").read_text())
                    run.check(how["world_size"] == 2 and how["steps"] == 4 and how["worlds"] == 1, f"{line}: {how}")


# ---- what they print -----------------------------------------------------------------------------

def files_of_ranks():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        logs = pathlib.Path(name, "logs")
        with Ranks("print('out', rank, attempt)\nprint('err', rank, attempt, file=sys.stderr)\nsys.exit(4 if rank == attempt else 0)",
                   "-r", 3, "--log-dir", logs, "--rdzv-id", "J", "--max-restarts", 1) as it:
            it.ends(4, re.escape(f"what it printed: {logs}/J/attempt_1/1/stderr.log"))
            it.run.check(not it.run.stdout and not re.search(r"err \d", it.run.stderr), "it is shown")
        # Rank 1 may have been asked to end before it printed anything.
        found = {str(p.relative_to(logs)): p.read_text() for p in logs.rglob("*.log")}
        assert found["J/attempt_0/0/stdout.log"] == "out 0 0\n" and found["J/attempt_0/0/stderr.log"] == "err 0 0\n", found
        assert found["J/attempt_1/1/stdout.log"] == "out 1 1\n" and len(found) == 8, found
        with Ranks("os.write(1, b'one\\ntwo'); os.write(2, b'three\\n')", "-t", "0:3,1:1", "--log-dir", logs, "--rdzv-id", "T") as it:
            it.ends(0)
            lines = sorted(it.run.stdout.splitlines())
            it.run.check(lines == ["(rank 0) one", "(rank 0) two", "(rank 1) one", "(rank 1) two"], f"printed: {lines}")
            it.run.check(it.run.stderr.count("three") == 2, "errors are not shown")
        with Ranks("print('out', rank)\nprint('err', rank, file=sys.stderr)", "--local-ranks-filter", "0,2", ranks=3) as it:
            it.ends(0)
            it.run.check(sorted(it.run.stdout.split("\n")) == ["", "out 0", "out 2"] and "err 1" not in it.run.stderr and "err 2" in it.run.stderr,
                         f"printed: {it.run.stdout}")
        with Ranks("print('out', rank)", "--local-ranks-filter", "1", "-t", 1, "--log-dir", logs, "--rdzv-id", "L") as it:
            it.ends(0)
            it.run.check(it.run.stdout == "(rank 1) out 1\n", f"printed: {it.run.stdout}")
        assert (logs / "L/attempt_0/0/stdout.log").read_text() == "out 0\n"
        assert (logs / "T/attempt_0/1/stdout.log").read_text() == "one\ntwo" and not (logs / "T/attempt_0/1/stderr.log").exists()


def files_that_cannot_be():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        taken = pathlib.Path(name, "taken")
        taken.write_text("")
        with Ranks("note('started')", "-r", 3, "--log-dir", taken) as it:
            it.ends(2, "log folder .*taken/run-.*: not a directory")
            it.run.check(not (it.folder / "started").exists(), "something was started")
    if os.path.exists("/dev/full"):
        with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
            full = pathlib.Path(name, "F/attempt_0/0")
            full.mkdir(parents=True)
            (full / "stdout.log").symlink_to("/dev/full")
            with Ranks("print('x' * 100)", "-r", 1, "--log-dir", name, "--rdzv-id", "F") as it:
                it.ends(0, r"stdout.log: .*: what rank 0 prints from here on is not kept")


def full_folder_of_files():
    """A small disk is full: the ranks go on, and start again, without their files; a folder that cannot be made is the same."""
    for how, files in (("size=64k", "4"), ("nr_inodes=6", r"\d+")):
        with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
            mounted = f'mount -t tmpfs -o {how} tmpfs "$1" && shift && exec "$@"'
            if not shutil.which("unshare") or Run(["unshare", "-m", "sh", "-c", mounted, "-", name, "true"]).wait(30) != 0:
                print("        a small disk: not run, nothing may be mounted here", flush=True)
                return
            body = "for line in range(4000): print('a line of some length', line)\nnote('done%d.%d' % (rank, attempt))\nif attempt == 0: until('done%d.0' % (1 - rank)); sys.exit(3)"
            with Ranks(body, "-r", 1, "--log-dir", name, "--rdzv-id", "F", "--max-restarts", 1, before=["unshare", "-m", "sh", "-c", mounted, "-", name]) as it:
                it.ends(0, r"(stdout|stderr).log: no space left on device: what rank \d prints from here on is not kept", f"{files} files of what ranks have printed end too early")
                it.run.check(it.run.stderr.count("no space left") == 1, "it is said again and again")
                it.until("done0.1", "done1.1")


def restart_storm():
    """All ranks fail at once, each time: each restart is one line, and so is the end."""
    with Ranks("note('tried%d.%d' % (rank, attempt))\nsys.exit(3)", "--max-restarts", 4, ranks=8) as it:
        it.ends(3, r"error: rank \d \(pid \d+\) exited with 3; the job was restarted 4 times already; when it is resumed it goes on from its last checkpoint, if it has one\n$")
        lines = it.run.stderr.splitlines()
        it.run.check([re.findall(r"start again \(restart (\d) of 4\)$", line) for line in lines] == [["1"], ["2"], ["3"], ["4"], []], "other lines")


# ---- trainings -----------------------------------------------------------------------------------

class Training:
    """A run of an example under `skein run`, beside the same one started alone."""

    def __init__(self, folder, *program):
        self.folder, self.text = pathlib.Path(folder), write_text(folder)
        self.command = [*program, *TINY, "--text", self.text, "--runs", self.folder / "runs", "--steps", 60, "--checkpoint-every", 10]

    def curve(self, name):
        path = self.folder / "runs" / name / "metrics.csv"
        return path.read_bytes() if path.exists() else b""

    def run(self, name, *options):
        return Run([SKEIN, "run", "--standalone", "--nproc-per-node", 2, *options, *self.command, "--run", name])

    def same_after_a_kill(self):
        with Run([*self.command, "--run", "alone", "--workers", 2]) as run:
            run.check(run.wait() == 0, "the undisturbed run failed")
        with self.run("killed") as run:
            run.wait_until(lambda: self.curve("killed").count(b"\n") > 25, "25 steps")
            os.kill(run.children()[-1], signal.SIGKILL)
            run.check(run.wait() == 0, "the killed run failed")
            lines = [line for line in run.stderr.splitlines() if line.startswith("skein run: ")]
            run.check(len(lines) == 1 and re.search(r"rank \d \(pid \d+\) killed by signal 9 \(SIGKILL\).*; all ranks start again \(restart 1 of 3\)", lines[0]),
                      f"it says {lines}")
            run.check(self.curve("killed") == self.curve("alone"), "another metrics.csv")
            how = json.loads((self.folder / "runs" / "killed" / "result.json").read_text())
            run.check(how["restarts"] == 1 and how["worlds"] == 2 and re.search(r"^rank \d \(pid \d+\) killed by signal 9|^worker \d .*killed by signal 9", how["last_change"]),
                      f"result.json says {how['restarts']} {how['worlds']} {how['last_change']}")
            run.check_nothing_left()


def ddp_goes_on():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        Training(folder, find_program("110_gpt_ddp")).same_after_a_kill()


def fsdp_goes_on():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        Training(folder, find_program("120_gpt_fsdp"), "--strategy", "fsdp").same_after_a_kill()


def training_is_stopped():
    """SIGTERM saves and stops; the next start goes on there."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program("110_gpt_ddp"))
        it.command += ["--steps", 100000]
        with it.run("stopped") as run:
            run.wait_until(lambda: it.curve("stopped").count(b"\n") > 3, "3 steps")
            run.process.send_signal(signal.SIGTERM)
            run.check(run.wait(60) == 143, "another exit code")
            run.check(list((it.folder / "runs" / "stopped" / "checkpoints").glob("step-*")), "nothing was saved")
            run.check_nothing_left()


def terminal_closes(*start, workers=()):
    """A training whose terminal closes saves and ends, as by SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program("110_gpt_ddp"))
        read, write = os.openpty()
        command = ["setsid", "--ctty", *start, *it.command, *workers, "--run", "closed", "--steps", "100000"]
        process = subprocess.Popen([str(word) for word in command], cwd=it.folder, stdin=write, stdout=write, stderr=write)
        os.close(write)
        os.set_blocking(read, False)
        until = time.monotonic() + 60
        said = b""
        while it.curve("closed").count(b"\n") < 4:
            assert time.monotonic() < until and process.poll() is None, said.decode()
            try:
                said += os.read(read, 1 << 16)
            except BlockingIOError:
                time.sleep(0.01)
        os.close(read)
        code = process.wait(60)
        assert code == 128 + signal.SIGTERM, f"exit code {code} after {said.decode()}"
        assert list((it.folder / "runs" / "closed" / "checkpoints").glob("step-*")), "nothing was saved"


def training_is_refused():
    """What would fail again is said once, in the training's own words."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program("110_gpt_ddp"))
        it.command[it.command.index("--text") + 1] = it.folder / "no-text"
        with it.run("refused") as run:
            code = run.wait(60)
            run.check(code in (1, 2) and "no-text" in run.stderr and "start again" not in run.stderr, f"code {code}")
            run.check_nothing_left()


def ranges():
    """Ranks of a fixed number cannot come and go: it is said what can."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program("110_gpt_ddp"))
        with Run([*it.command, "--run", "range", "--workers", "1:3"]) as run:
            run.check(run.wait(60) == 2, "it is a usage error")
            for text in ("this process is a worker of an elastic job (1 to 3 workers)", "ranks that never change", "`--workers 3`", "`skein run --nnodes 1:4`"):
                run.check(run.stderr.count(text) == 1, f"{text!r} is said {run.stderr.count(text)} times")
            run.check_nothing_left()
    with Run([SKEIN, "run", "--standalone", "--nproc-per-node", "1:3", "true"]) as run:
        run.check(run.wait(30) == 2, "it is a usage error")
        for text in ("--nproc-per-node 1:3: a number", "--nnodes LEAST:MOST", "./train --workers 1:4"):
            run.check(text in run.stderr, f"no {text!r} in what it says")


def no_rank_of_a_training():
    """A rank that ends with 0 while another one waits for it is named; scripts around a program work."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program("110_gpt_ddp"))
        with Run([SKEIN, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 0, "sh", "-c",
                  'if [ $RANK = 1 ]; then exit 0; fi; "$@"; exit $?', "sh", *it.command, "--run", "none"]) as run:
            run.check(run.wait(60) == 1 and "worker 1 exited before the job was done" in run.stderr, "it is not named")
            run.check_nothing_left()


def scripts_in_between():
    """A script that has a descriptor of its own where ours was, or closes all of them: its rank meets the others by RANK and MASTER_ADDR."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        it = Training(folder, find_program("110_gpt_ddp"))
        wrap = it.folder / "wrap.py"
        wrap.write_text("import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n")
        for name, *before in (("taken", "sh", "-c", 'exec 3>&1; "$@"; exit $?', "sh"), ("closed", sys.executable, "-S", wrap)):
            with Run([SKEIN, "run", "--standalone", "--nproc-per-node", 2, *before, *it.command, "--run", name]) as run:
                run.check(run.wait(120) == 0, "it failed")
                how = json.loads((it.folder / "runs" / name / "result.json").read_text())
                run.check(how["world_size"] == 2 and how["steps"] == 60, f"another world: {how}")
                run.check_nothing_left()


def elastic_goes_on():
    """A program of elastic workers is known by itself: who lives goes on, in the process that was started first."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as name:
        folder = pathlib.Path(name)
        (folder / "asked").mkdir()

        def worlds():
            found = [[int(pid) for pid in pids.split()] for pids in re.findall(r": pid ((?:\d+ ?)+)", run.stderr)]
            return found[-1] if found else []

        def rows():
            path = folder / "elastic" / "metrics.csv"
            return path.read_bytes().count(b"\n") if path.exists() else 0

        with Run([SKEIN, "run", "--standalone", "--nproc-per-node", 2, find_program("skein_elastic"), "--runs", folder, "--asked", folder / "asked"]) as run:
            run.wait_until(lambda: len(worlds()) == 2 and rows() > 5, "a world of 2")
            first = worlds()
            os.kill(first[0], signal.SIGKILL)
            run.wait_until(lambda: len(worlds()) == 2 and worlds()[0] != first[0] and first[0] not in worlds(), "another world of 2")
            run.check(first[1] in worlds(), "who lived was started again")
            at = rows()
            run.wait_until(lambda: rows() > at + 5, "further steps")
            (folder / "asked" / "stop").write_text("")
            run.check(run.wait(60) == 0, "another exit code")
            how = json.loads((folder / "elastic" / "result.json").read_text())
            run.check(how["worlds"] >= 2 and how["last_change"], f"result.json says {how['worlds']} {how['last_change']}")
            run.check_nothing_left()


run_cases([("place in the environment", place_in_the_environment), ("all start again", all_start_again),
           ("code of the failing rank", code_of_the_failing_rank), ("some end earlier", some_end_earlier), ("ignores SIGTERM", ignores_sigterm),
           ("leaves others behind", leaves_others_behind), ("more ranks than processors", more_ranks_than_processors), ("stopped", stopped),
           ("outlives its terminal", outlives_its_terminal), ("says nothing to nobody", says_nothing_to_nobody),
           ("terminal closes", lambda: terminal_closes(SKEIN, "run", "--standalone", "--nproc-per-node", 2)), ("terminal of a supervisor closes", lambda: terminal_closes("env", workers=["--workers", 2])), ("two at once", two_at_once), ("killed itself", killed_itself), ("wrong programs", wrong_programs), ("options", options), ("lines of torchrun", lines_of_torchrun), ("files of ranks", files_of_ranks),
           ("files that cannot be", files_that_cannot_be), ("full folder of files", full_folder_of_files), ("restart storm", restart_storm), ("ranges", ranges), ("ddp goes on", ddp_goes_on), ("fsdp goes on", fsdp_goes_on),
           ("training is stopped", training_is_stopped), ("training is refused", training_is_refused), ("no rank of a training", no_rank_of_a_training), ("scripts in between", scripts_in_between),
           ("elastic goes on", elastic_goes_on)],
          sys.argv[1] if len(sys.argv) > 1 else None)

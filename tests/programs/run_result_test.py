#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""train::run<&loop> gives the same result in every way it can run, says what went wrong, and leaves nothing behind. [P15]"""
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, free_port, run_cases  # noqa: E402


def ended(run, code=0):
    got = run.wait(120)
    run.check(got == code, f"exit code {got}, not {code}")
    left = run.left_behind()
    run.check(not left, f"left behind: {left}")
    return run.stdout


def has(run, *texts):
    for text in texts:
        run.check(text in run.stdout, f"no {text!r} in what it says")


def main():
    program = find_program("skein_run")

    def here(what, *more, code=0, **env):
        run = Run([program, what, *more], **env)
        with run:
            ended(run, code)
            run.said = run.stdout
        return run.said

    def one(what, *more, code=0, texts=(), mains=1):
        with Run([program, what, *more]) as run:
            ended(run, code)
            has(run, *texts)
            run.check(run.stdout.count("main of ") == mains, "main ran in a rank")
            run.check("error: " not in run.stderr, "an error was printed, too")

    def alone():
        one("adds", texts=["run: ok restarts=0 rank=-1", 'run value: sum=2 ranks=1 of "rank 0"'])

    def supervised():
        one("adds", "--workers", 3, texts=["run: ok restarts=0", 'run value: sum=12 ranks=3 of "rank 0"'])

    def without_serving():
        """A main that does not call serve_if_worker(): ranks enter their loop at its first run, and never come behind it."""
        one("in turn", "--workers", 2, "--late", texts=["first: ok", "second: ok", "second value: 84", "third: ok"], mains=7)

    def in_turn():
        one("in turn", "--workers", 2, texts=["first: ok", "first value: sum=3 ranks=2", "second: ok", "second value: 84", "third: ok"])

    def at_once():
        for workers in (1, 2):
            sums = [1, 2, 3] if workers == 1 else [3, 6, 9]
            one("at once", "--workers", workers, texts=[f"sum {s}\n" for s in sums])
        with Run([program, "at once", "--workers", 2, "--late"]) as run:    # ranks would run on threads among others
            said = ended(run)
            run.check(said.count("it came to its run on a thread of main: let main call skein::serve_if_worker() first") == 3, "no word on what to do")
            run.check(said.count("sum -1\n") == 3, "a run has succeeded")

    def thrown():
        one("throws", code=1, texts=["run: no such digits", "rank=0"])
        one("throws", "--workers", 3, code=1, texts=["run: rank 2 of 3: no such digits", "restarts=0 rank=2"])

    def exited():
        one("exits", "--workers", 3, "--failures", 0, code=1, texts=["run: rank 2 of 3: worker 2 (pid ", ") exited with 3", "rank=2"])
        one("exits well", "--workers", 2, "--failures", 0, code=1,
            texts=["run: rank 1 of 2: worker 1 exited before the job was done; it must return from its training function, not call exit()"])

    def killed():
        one("is killed", "--workers", 2, "--failures", 1, code=1,
            texts=["run: rank 1 of 2: worker 1 (pid ", "killed by signal 9 (SIGKILL)", "restarts=1 rank=1"])
        one("is killed once", "--workers", 2, texts=["run: ok restarts=1 rank=-1", "run value: sum=6 ranks=2"])

    def too_large():
        for workers, who in ((1, "run: the"), (2, "run: rank 0 of 2: the")):
            one("is large", "--workers", workers, code=1,
                texts=[f"{who} result of train_loop is 10486", "the limit is 1048576 bytes; save it to a file in the loop and return the path",
                       "restarts=0 rank=0"])
        one("large order", "--workers", 2, texts=["run: the arguments of train_loop are 1048", "save them to a file and give its path"])

    def no_ranks_of_ranks():
        one("nests", "--workers", 2, code=1, texts=["not supported: a run in a rank of a run"])
        with Run([program, "launches", "--workers", 2]) as run:
            ended(run)
            has(run, "launch gave 2")
            run.check("not supported: launch() in a rank of a run" in run.stderr, "it does not say why")
        with Run([program, "launch"]) as run:
            ended(run)
            has(run, "inner: not supported: a run in a rank of launch()")

    def stopped(workers):
        def case():
            with Run([program, "waits", "--workers", workers]) as run:
                run.wait_until(lambda: "working " in run.stdout, "a rank that works")
                run.process.send_signal(signal.SIGTERM)
                ended(run)
                has(run, "run: ok", "stopped=SIGTERM", f"ranks={workers}")
        return case

    def caller_killed():
        """Ranks die with their caller, however it dies."""
        with Run([program, "waits", "--workers", 2]) as run:
            run.wait_until(lambda: "working " in run.stdout, "a rank that works")
            run.process.kill()
            ended(run, -signal.SIGKILL)

    def folder(workers):
        def case():
            with tempfile.TemporaryDirectory() as name:
                runs = pathlib.Path(name)
                one("trains", "--workers", workers, "--folder", runs,
                    texts=["run: ok", "run run: run steps=10 loss=0.1 best=0.25@4 rows=10", f"run read: steps=10 loss=0.1 best=0.25@4 ranks={workers}"])
                file = runs / "run" / "result.json"
                told = json.loads(file.read_text())
                assert told["format"] == "skein-result-1" and told["world_size"] == workers and told["error"] is None, told
                wanted = {1: 2.0, 3: 12.0}[workers]
                assert told["value"] == {"sum": wanted, "ranks": workers, "note": 'of "rank 0"', "padding": []}, told["value"]
                assert {"name": "val_loss", "value": 0.5, "step": 8} in told["metrics"], told["metrics"]
        return case

    def failed_folder():
        """A run that fails after its fit() says so in its folder, too."""
        with tempfile.TemporaryDirectory() as name:
            for workers in (1, 2):
                runs = pathlib.Path(name) / str(workers)
                one("fails late", "--workers", workers, "--folder", runs, code=1,
                    texts=["no such digits", "run run: run steps=10", "run read: failed: ", "no such digits"])
                error = json.loads((runs / "run" / "result.json").read_text())["error"]
                assert error["rank"] == workers - 1 and error["text"] == "no such digits", error

    def read_back():
        with tempfile.TemporaryDirectory() as name:
            runs = pathlib.Path(name)
            here("trains", "--folder", runs)
            file = runs / "run" / "result.json"
            whole = file.read_bytes()

            def reads(*texts):
                said = here("reads", "--folder", runs / "run")
                for text in texts:
                    assert text in said, f"no {text!r} in {said}"

            reads("read: steps=10 loss=0.1 best=0.25@4")
            for length in range(0, len(whole), max(1, len(whole) // 7)):
                file.write_bytes(whole[:length])
                reads(f"read: {file}: it is cut short after {length} bytes", "train again")
            file.write_bytes(whole[:50] + b"}\n")
            reads(f"read: {file}: not JSON: ")
            file.write_text('{"name": "run"}\n')
            reads(f"read: {file}: it is not the result of a run")
            file.write_text(whole.decode().replace("skein-result-1", "skein-result-9"))
            reads("not supported: format skein-result-9, this program reads skein-result-1")
            file.write_text(whole.decode().replace('"steps": 10', '"steps": "ten"'))
            reads("'steps' is missing or is not a whole number")
            file.unlink()
            reads("result.json is not there; a run has one when its training has ended")

    def by_variables():
        port = free_port()
        ranks = []
        with tempfile.TemporaryDirectory() as name:
            for rank in range(2):
                ranks.append(Run([program, "in turn"], XDG_CONFIG_HOME=name, RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2,
                                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
            try:
                for run in ranks:
                    ended(run)
                    has(run, "first: ok", "first value: sum=3 ranks=2", "second value: 84", "third: ok")
            finally:
                for run in ranks:
                    run.__exit__()

    def other_arguments():
        port = free_port()
        ranks = []
        with tempfile.TemporaryDirectory() as name:
            for rank in range(2):
                ranks.append(Run([program, ["adds", "sums"][rank]], XDG_CONFIG_HOME=name, RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2,
                                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
            try:
                for run in ranks:
                    ended(run, 1)
                    has(run, "the ranks' settings differ: rank 1 has arguments ")
            finally:
                for run in ranks:
                    run.__exit__()

    def launched(*command):
        def case():
            with tempfile.TemporaryDirectory() as name:
                runs = pathlib.Path(name) / "runs"
                with Run([*command, program, "in turn"], XDG_CONFIG_HOME=name) as run:
                    said = ended(run)
                    for text in ("first: ok", "first value: sum=6 ranks=3", "second value: 126", "third: ok"):
                        run.check(said.count(text) == 3, f"{text!r} is not from three ranks")
                with Run([*command, program, "trains", "--folder", runs], XDG_CONFIG_HOME=name) as run:
                    said = ended(run)
                    for text in ("run value: sum=12 ranks=3", "run run: run steps=10 loss=0.1 best=0.25@4 rows=10"):
                        run.check(said.count(text) == 3, f"{text!r} is not from three ranks")
                for what in ("throws", "is killed"):
                    with Run([*command, program, what], XDG_CONFIG_HOME=name) as run:
                        run.check(run.wait(120) != 0, "it succeeded")
                        run.check("rank 2 of 3" in run.stdout, "the rank is not named")
                        run.check_nothing_left()
        return case

    cases = [("alone", alone), ("three supervised ranks", supervised), ("a main without serve_if_worker()", without_serving), ("in turn", in_turn),
             ("at once", at_once), ("a loop that throws", thrown), ("a loop that exits", exited), ("a rank that is killed", killed),
             ("a result and arguments that are too large", too_large), ("no ranks of ranks", no_ranks_of_ranks), ("stopped alone", stopped(1)),
             ("stopped with ranks", stopped(3)), ("a caller that is killed", caller_killed), ("the folder alone", folder(1)),
             ("the folder of three", folder(3)), ("the folder of a failure", failed_folder), ("read back, and cut short", read_back),
             ("a launcher's ranks", by_variables), ("other arguments on a rank", other_arguments)]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if shutil.which("mpirun"):
        cases.append(("real mpirun", launched("mpirun", *root, "--oversubscribe", "-n", "3")))
    else:
        print("        mpirun is not installed: Open MPI is left out")
    run_cases(cases, sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

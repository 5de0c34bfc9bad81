#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers and supervisors are killed at random moments; the loss curve must not show it.

    kill_test.py [--kills N] [--seed S]

Each killed run has to end by itself with exit code 0 and the same bytes in metrics.csv as an undisturbed
run, and to leave no process, socket or shared memory behind.
"""
import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, run_cases, write_text  # noqa: E402

STEPS = 120


def arguments(folder, name):
    return [find_program("110_gpt_ddp"), *TINY, "--text", folder / "text.txt", "--runs", folder / "runs", "--run", name,
            "--workers", 2, "--steps", STEPS, "--checkpoint-every", 10, "--eval-every", 30, "--max-failures", 10]


def curve(folder, name):
    path = folder / "runs" / name / "metrics.csv"
    return path.read_bytes() if path.exists() else b""


def rows(folder, name):
    return curve(folder, name).count(b"\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder)

        with Run(arguments(folder, "quiet")) as run:
            run.check(run.wait() == 0, "the undisturbed run failed")
            length = time.monotonic() - run.begin
            run.check(not run.left_behind(), f"left behind: {run.left_behind()}")
        wanted = curve(folder, "quiet")
        assert wanted.count(b"\n") > STEPS / 2, "the undisturbed run wrote no curve"
        restarted = 0

        def kill_a_worker(number):
            nonlocal restarted
            moment, victim = draw.uniform(0.0, length), draw.randrange(2)
            with Run(arguments(folder, f"kill-{number}")) as run:
                killed = False
                while time.monotonic() - run.begin < moment and run.process.poll() is None:
                    time.sleep(0.001)
                workers = run.children()
                if len(workers) > victim and run.process.poll() is None:
                    try:
                        os.kill(workers[victim], signal.SIGKILL)
                        killed = True
                    except ProcessLookupError:
                        pass  # it ended in this very moment
                code = run.wait()
                run.check(code == 0, f"exit code {code} after a kill at {moment:.3f} s")
                run.check(curve(folder, f"kill-{number}") == wanted, f"another loss curve after a kill at {moment:.3f} s")
                run.check(not run.left_behind(), f"left behind: {run.left_behind()}")
                again = "restart 1 of" in run.stderr
                restarted += again
                print(f"        kill {number}: worker {victim} at {moment:.3f} s of {length:.3f}: "
                      f"{'killed' if killed else 'was gone'}, {'restarted' if again else 'no restart needed'}", flush=True)

        def kill_in_the_middle():
            with Run(arguments(folder, "middle")) as run:
                run.wait_until(lambda: rows(folder, "middle") > 40, "40 steps")
                os.kill(run.children()[-1], signal.SIGKILL)
                run.check(run.wait() == 0, "the run did not recover")
                run.check("restart 1 of" in run.stderr, "no word of a restart")
                run.check("signal 9" in run.stderr, "the reason is not named")
                run.check(curve(folder, "middle") == wanted, "another loss curve")
                run.check(not run.left_behind(), f"left behind: {run.left_behind()}")

        def stop_a_worker():
            with Run(arguments(folder, "stopped")) as run:
                run.wait_until(lambda: rows(folder, "stopped") > 40, "40 steps")
                os.kill(run.children()[0], signal.SIGSTOP)
                run.check(run.wait() == 0, "the run did not recover from a worker that hangs")
                run.check(curve(folder, "stopped") == wanted, "another loss curve")
                run.check(not run.left_behind(), f"left behind: {run.left_behind()}")

        def kill_the_supervisor():
            with Run(arguments(folder, "orphans")) as run:
                run.wait_until(lambda: rows(folder, "orphans") > 20, "20 steps")
                run.check(len(run.children()) == 2, f"not two workers: {run.children()}")
                run.process.kill()
                begin = time.monotonic()
                run.process.wait()
                while run.marked.processes() and time.monotonic() - begin < 10:
                    time.sleep(0.001)
                took = time.monotonic() - begin
                run.check(took < 1.0, f"the workers outlived their supervisor by {took:.3f} s")
                run.check(not run.left_behind(), f"left behind: {run.left_behind()}")
                print(f"        workers gone {took:.3f} s after their supervisor", flush=True)

        def interrupt(number, code):
            def case():
                name = f"interrupt-{code}"
                with Run(arguments(folder, name)) as run:
                    run.wait_until(lambda: rows(folder, name) > 20, "20 steps")
                    run.process.send_signal(number)
                    got = run.wait()
                    run.check(got == code, f"exit code {got}")
                    run.check(not run.left_behind(), f"left behind: {run.left_behind()}")
                    done = rows(folder, name)
                    run.check(done < STEPS, "it did not stop early")
                with Run([*arguments(folder, name), "--resume"]) as run:
                    run.check(run.wait() == 0, "resume failed")
                    run.check(curve(folder, name) == wanted, "another loss curve after stop and resume")
            return case

        cases = [("a worker killed in the middle of training", kill_in_the_middle)]
        for i in range(options.kills):
            cases.append((f"a worker killed at a random moment, {i + 1} of {options.kills}", lambda i=i: kill_a_worker(i + 1)))
        cases += [("a worker that hangs", stop_a_worker),
                  ("a supervisor killed: its workers leave within a second", kill_the_supervisor),
                  ("Ctrl-C stops in order and resume goes on", interrupt(signal.SIGINT, 130)),
                  ("SIGTERM stops in order and resume goes on", interrupt(signal.SIGTERM, 143))]
        run_cases(cases)


if __name__ == "__main__":
    main()

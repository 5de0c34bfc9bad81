#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed or stopped in the middle of a gather, a reduction or an update: the run goes on from the last
checkpoint to the same curve and the same weights, says who it was, and leaves nothing behind."""
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases  # noqa: E402


def main():
    program = find_program("skein_phases")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scratch = folder / "tmp"
        scratch.mkdir()

        def train(run_name, communicator, *arguments):
            return Run([program, "--strategy", "fsdp", "--workers", 2, "--communicator", communicator, "--runs", folder / "runs",
                        "--run", run_name, "--weights", folder / f"{run_name}.bin", *arguments], TMPDIR=scratch)

        def result(run_name):
            return (folder / "runs" / run_name / "metrics.csv").read_bytes(), (folder / f"{run_name}.bin").read_bytes()

        def check_left(run):
            run.check_nothing_left()
            run.check(not list(scratch.iterdir()), f"left behind: {list(scratch.iterdir())}")

        def quiet(communicator):
            def case():
                with train(f"quiet-{communicator}", communicator) as run:
                    run.check(run.wait() == 0, "the undisturbed run failed")
                    check_left(run)
            return case

        def faulty(communicator, phase, number):
            def case():
                run_name = f"{communicator}-{phase}-{number}"
                with train(run_name, communicator, "--fault", phase, "--signal", int(number)) as run:
                    run.check(run.wait() == 0, "the run did not recover")
                    told = [line for line in run.stderr.splitlines() if "restart 1 of" in line]
                    run.check(told, "no word of a restart: the signal came to nothing")
                    word = "signal 9" if number == signal.SIGKILL else "silent"
                    run.check(word in run.stderr, f"'{word}' is not in the message")
                    run.check(result(run_name) == result(f"quiet-{communicator}"), "another curve or other weights")
                    check_left(run)
            return case

        cases = []
        for communicator in ("ring", "shm"):
            cases.append((f"nobody is disturbed, {communicator}", quiet(communicator)))
            for phase in ("gather", "reduce", "apply"):
                cases.append((f"killed in {phase}, {communicator}", faulty(communicator, phase, signal.SIGKILL)))
        for phase in ("gather", "reduce", "apply"):
            cases.append((f"stopped in {phase}, ring", faulty("ring", phase, signal.SIGSTOP)))
        cases.append(("stopped in reduce, shm", faulty("shm", "reduce", signal.SIGSTOP)))
        run_cases(cases, None)


if __name__ == "__main__":
    main()

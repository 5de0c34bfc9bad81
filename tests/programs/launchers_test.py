#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same program under every launcher forms one world and gives the same loss curve.

Open MPI is run for real; torchrun, Slurm, MPICH and Kubernetes by their variables.
"""
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, free_port, run_cases, write_text  # noqa: E402


def main():
    program = find_program("110_gpt_ddp")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder)
        config = folder / "config"

        def arguments(run, *more, steps=20):
            return [program, *TINY, "--text", folder / "text.txt", "--runs", folder / "runs", "--run", run, "--steps", steps, *more]

        def curve(run):
            path = folder / "runs" / run / "metrics.csv"
            return path.read_bytes() if path.exists() else b""

        with Run(arguments("supervised", "--workers", 2)) as run:
            run.check(run.wait() == 0, "the supervised run failed")
        wanted = curve("supervised")

        def by_variables(run_name, variables):
            """variables(rank, port) for two processes that nobody supervises."""
            def case():
                port = free_port()
                runs = [Run(arguments(run_name), XDG_CONFIG_HOME=config, **variables(rank, port)) for rank in range(2)]
                try:
                    for run in runs:
                        code = run.wait()
                        run.check(code == 0, f"exit code {code}")
                    runs[0].check(curve(run_name) == wanted, "another loss curve than under the own supervisor")
                    runs[0].check("under the same launcher: " in runs[0].stdout, "the next command lacks its launcher")
                    runs[0].check_nothing_left()
                finally:
                    for run in runs:
                        run.__exit__()
            return case

        def mpirun():
            command = [shutil.which("mpirun"), "--oversubscribe", "-n", 2]
            if os.geteuid() == 0:
                command.insert(1, "--allow-run-as-root")
            with Run([*command, *arguments("mpirun")], XDG_CONFIG_HOME=config) as run:
                code = run.wait()
                run.check(code == 0, f"exit code {code}")
                run.check(curve("mpirun") == wanted, "another loss curve than under the own supervisor")

        def lost_rank():
            """Without a supervisor a killed rank ends the others with an error that names it."""
            port = free_port()
            runs = [Run(arguments("lost", "--steps", 100000), XDG_CONFIG_HOME=config, RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank,
                        LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(2)]
            try:
                runs[0].wait_until(lambda: curve("lost").count(b"\n") > 10, "10 steps")
                runs[1].process.kill()
                code = runs[0].wait(30)
                runs[0].check(code == 1, f"exit code {code}")
                runs[0].check("rank 1" in runs[0].stderr, "the lost rank is not named")
            finally:
                for run in runs:
                    run.__exit__()

        def wrong_token():
            port = free_port()
            tokens = ["11" * 32, "22" * 32]
            runs = [Run(arguments("token"), SKEIN_TOKEN=tokens[rank], RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2,
                        MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(2)]
            try:
                code = runs[1].wait(60)
                runs[1].check(code == 1, f"exit code {code}")
                runs[1].check("token" in runs[1].stderr, "the reason is not named")
            finally:
                for run in runs:
                    run.__exit__()

        def port_in_use():
            import socket
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                with Run(arguments("port"), RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1",
                         MASTER_PORT=port, XDG_CONFIG_HOME=config) as run:
                    code = run.wait(60)
                    run.check(code == 1, f"exit code {code}")
                    run.check(str(port) in run.stderr and "in use" in run.stderr, "the port is not named")

        def rank_of(run_name, rank, port, *more, steps=20, **env):
            return Run(arguments(run_name, *more, steps=steps), **{**torch(rank, port), "XDG_CONFIG_HOME": config, **env})

        def listens(port):
            import socket
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0

        def stopped_while_waiting():
            """SIGTERM ends a rank at once that waits for the others, and one that waits for rank 0."""
            port = free_port()
            for rank in range(2):
                with rank_of("alone", rank, port) as run:
                    if rank == 0:
                        run.wait_until(lambda: listens(port), "a listening rank 0", 60)
                    else:    # it waits when it has its name
                        comm = pathlib.Path(f"/proc/{run.process.pid}/comm")
                        run.wait_until(lambda: "rank1" in comm.read_text(), "a rank that joins", 60)
                        time.sleep(0.2)
                    begin = time.monotonic()
                    run.process.terminate()
                    code = run.wait(30)
                    run.check(code == 143, f"exit code {code}")
                    run.check("stopped by SIGTERM" in run.stderr, "it does not say so")
                    run.check(time.monotonic() - begin < 10, "it took long")

        def other_settings():
            port = free_port()
            with rank_of("steps", 0, port) as first, rank_of("steps", 1, port, steps=21) as second:
                for run in (first, second):
                    code = run.wait(60)
                    run.check(code == 1, f"exit code {code}")
                    run.check("max_steps" in run.stderr and "21" in run.stderr and "20" in run.stderr, "the setting is not named")

        def other_job():
            port = free_port()
            with rank_of("job", 0, port, TORCHELASTIC_RUN_ID="a") as first:
                first.wait_until(lambda: listens(port), "a listening rank 0", 60)
                for other, both in ((dict(TORCHELASTIC_RUN_ID="b"), ("'b'", "'a'")),
                                    (dict(TORCHELASTIC_RUN_ID="a", TORCHELASTIC_RESTART_COUNT=1), ("attempt 1", "attempt 0"))):
                    with rank_of("job", 1, port, **other) as stranger:
                        code = stranger.wait(60)
                        stranger.check(code == 1, f"exit code {code}")
                        stranger.check(all(text in stranger.stderr for text in both), "the two are not named")
                with rank_of("job", 1, port, TORCHELASTIC_RUN_ID="a") as second:
                    for run in (first, second):
                        code = run.wait(60)
                        run.check(code == 0, f"exit code {code}")
                first.check(curve("job") == wanted, "another loss curve than under the own supervisor")

        def unused_workers():
            port = free_port()
            with rank_of("workers", 0, port, "--workers", 3) as first, rank_of("workers", 1, port, "--workers", 3) as second:
                for run in (first, second):
                    code = run.wait(60)
                    run.check(code == 0, f"exit code {code}")
                first.check("3 workers were asked for, but torch has started a world of 2" in first.stderr, "it does not say so")

        def other_data():
            """Two hosts whose files have one name and one size, but not one content, do not train apart."""
            here = [folder / "one", folder / "two"]
            for each in here:
                each.mkdir()
            (here[1] / "text.txt").write_text(write_text(here[0]).read_text().upper())
            port = free_port()
            command = [program, *TINY, "--text", "text.txt", "--runs", folder / "runs", "--run", "data", "--steps", 3]
            with contextlib.ExitStack() as both:
                for run in [both.enter_context(Run(command, cwd=here[rank], XDG_CONFIG_HOME=config, **torch(rank, port))) for rank in (0, 1)]:
                    run.check(run.wait() == 1 and "rank 1 has checksum of some training samples" in run.stderr, "it does not say what differs")

        def torch(rank, port):
            return dict(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

        def slurm(rank, port):
            return dict(SLURM_PROCID=rank, SLURM_STEP_ID=0, SLURM_JOB_ID=port, SLURM_STEP_NUM_TASKS=2, SLURM_LOCALID=rank, SLURM_NODEID=0,
                        SLURM_STEP_TASKS_PER_NODE=2, SLURM_STEP_NODELIST="localhost")

        def mpich(rank, port):
            return dict(PMI_RANK=rank, PMI_SIZE=2, MPI_LOCALRANKID=rank, MPI_LOCALNRANKS=2, SKEIN_MASTER_PORT=port)

        def kubernetes(rank, port):
            return dict(JOB_COMPLETION_INDEX=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

        cases = [("torchrun's variables", by_variables("torch", torch)), ("Slurm's variables", by_variables("slurm", slurm)),
                 ("MPICH's variables", by_variables("mpich", mpich)), ("a Kubernetes indexed job's variables", by_variables("k8s", kubernetes)),
                 ("a rank that is lost without a supervisor", lost_rank), ("a wrong token", wrong_token), ("a port in use", port_in_use),
                 ("a stop while a rank waits", stopped_while_waiting), ("other settings on one rank", other_settings),
                 ("other data on one rank", other_data),
                 ("a rank of another job or attempt", other_job), ("workers that a launcher overrules", unused_workers)]
        if shutil.which("mpirun"):
            cases.append(("real mpirun", mpirun))
        else:
            print("        mpirun is not installed: Open MPI by its variables only is covered by the table's tests")
        run_cases(cases, sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run folders in the hands of people: two runs of one name, resuming, stopping, and what is said about it."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, run_cases, write_text  # noqa: E402

FOREVER = 1000000


def main():
    program = find_program("110_gpt_ddp")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder)
        runs = folder / "runs"

        def arguments(run, steps, *more):
            return [program, *TINY, "--text", folder / "text.txt", "--runs", runs, "--run", run, "--steps", steps, *more]

        def rows(run):
            path = runs / run / "metrics.csv"
            return path.read_text().splitlines()[1:] if path.exists() else []

        def finish(*what):
            with Run(arguments(*what)) as run:
                run.check(run.wait() == 0, "the run failed")
                return run.stdout, run.stderr

        def in_use():
            with Run(arguments("held", FOREVER, "--workers", 2, "--checkpoint-every", 5)) as first:
                first.wait_until(lambda: len(rows("held")) > 10, "10 steps")
                for workers in (1, 2):
                    with Run(arguments("held", FOREVER, "--workers", workers, "--resume")) as second:
                        code = second.wait(60)
                        second.check(code == 2, f"exit code {code}")
                        said = re.search(r"held is in use by pid (\d+) on \S", second.stderr)
                        second.check(said, "the owner is not named")
                        second.check(int(said.group(1)) in first.children(), "another process is named")
                        second.check("another name" in second.stderr and "starting again" not in second.stderr, "no way out")
                        second.check(re.search("^error: [^ ]*held is in use", second.stderr, re.M), "a rank's exchange is in front of it")
                seen = len(rows("held"))
                first.wait_until(lambda: len(rows("held")) > seen, "more steps of the first run")
                steps = [int(r.split(",")[0]) for r in rows("held")]
                first.check(steps == list(range(1, len(steps) + 1)), "rows of two runs are mixed")
                first.process.kill()  # however a run ends, its folder is free again
                with Run(arguments("held", len(steps) + 400, "--resume")) as third:
                    third.check(third.wait() == 0, "the run of a dead process cannot be resumed")
                    third.check("resumed after step" in third.stderr, "it did not go on")

        def shut_output():
            command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *map(str, arguments("shut", 5))]
            assert subprocess.run(command, check=False).returncode == 0
            assert len(rows("shut")) == 5
            for path in (runs / "shut").iterdir():
                assert path.is_dir() or b"finished" not in path.read_bytes(), f"the output went into {path}"

        def at_once():
            both = [Run(arguments("twin", 5)) for _ in range(2)]
            try:
                for run in both:
                    run.check(run.wait() == 0, "the run failed")
                for one in ("twin", "twin.2"):
                    both[0].check(len(rows(one)) == 5, f"{one} has {len(rows(one))} rows")
                    both[0].check(json.loads((runs / one / "config.json").read_text())["name"] == one, "another name on disk")
                said = both[0].stderr + both[1].stderr
                both[0].check(said.count("twin exists: this run is") == 1, "not one word of the other name")
            finally:
                for run in both:
                    run.__exit__()

        def nothing_to_resume():
            _, said = finish("nothere", 3, "--resume")
            assert f"nothing to resume in {runs}/nothere: starting at step 0" in said, said
            out, said = finish("nothere-quiet", 3, "--resume", "--quiet")
            assert out == said == "", out + said  # errors only, and there is none
            out, _ = finish("nothere-json", 3, "--resume", "--json")
            events = [json.loads(line) for line in out.splitlines()]
            assert any("nothing to resume" in e.get("text", "") for e in events), out
            assert events[0]["event"] == "start" and len(events[0]["pids"]) == 1, out

        def other_settings():
            finish("other", 3, "--lr", "0.01")
            _, said = finish("other", 6, "--resume", "--lr", "0.02")
            assert "goes on with other settings: lr: 0.01 -> 0.02" in said, said

        def next_command():
            out, said = finish("more", 6)
            assert "learning rate" not in said, said
            command = next(line.strip() for line in out.splitlines() if line.endswith("--resume"))
            assert "--steps 12" in command, command
            with Run(shlex.split(command)) as run:
                run.check(run.wait() == 0, "the printed command failed")
                run.check(len(rows("more")) == 12, f"{len(rows('more'))} rows after 12 steps")
                run.check("6 of them since the resume" in run.stdout, "the steps of this start are not told")
                run.check("the learning rate of step 7 is" in run.stderr, "no word of the jump of the learning rate")
            with Run([*shlex.split(command), "--resume"]) as run:
                run.check(run.wait() == 0, "the third start failed")
                run.check("nothing left to train: step 12 of 12" in run.stderr, "no word that nothing is left")
                run.check("\n  speed" not in run.stdout, "a speed without a step")

        def interrupted(workers, *more):
            def case():
                with Run(arguments(f"stop-{workers}", FOREVER, "--workers", workers, *more)) as run:
                    run.wait_until(lambda: len(rows(f"stop-{workers}")) > 5, "5 steps")
                    run.process.send_signal(signal.SIGINT)
                    code = run.wait()
                    run.check(code == 130, f"exit code {code}")
                    run.check(run.stderr.count("stopping after this step and saving a checkpoint; Ctrl-C again") == 1,
                              "the stop is not acknowledged once")
                    run.check("stopped by SIGINT" in run.stdout, "the summary does not say by what")
                    run.check("error:" not in run.stderr, "a stop in order is called an error")
            return case

        def names():
            with Run(arguments("names", FOREVER, "--workers", 2)) as run:
                run.wait_until(lambda: len(rows("names")) > 2, "2 steps")
                found = {pathlib.Path(f"/proc/{p}/comm").read_text().strip(): p for p in run.children()}
                run.check(sorted(found) == ["110_gpt_d:rank0", "110_gpt_d:rank1"], f"processes are called {sorted(found)}")
                said = re.search(r"DDP over .*, 2 workers: pid (\d+) (\d+)", run.stderr)
                run.check(said, "no word of the workers")
                wanted = [found["110_gpt_d:rank0"], found["110_gpt_d:rank1"]]
                run.check([int(p) for p in said.groups()] == wanted, "other processes are named")
                run.check("parameters" in run.stderr and "text.txt: " in run.stderr, "no word of the model and the text")
                os.kill(run.process.pid, signal.SIGKILL)

        run_cases([("a run in use is not resumed by another", in_use),
            ("output that is closed", shut_output),
                   ("two runs of one name started at once", at_once),
                   ("other settings at a resume are told", other_settings),
                   ("--resume with nothing there says so", nothing_to_resume),
                   ("the printed next command trains on", next_command),
                   ("Ctrl-C is acknowledged, one process", interrupted(1)),
                   ("Ctrl-C is acknowledged, two workers", interrupted(2)),
                   ("workers are named and told at the start", names)],
                  sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/330_spot_trace as its first lines say: a trace of workers that come and go, played to four runs.

    spot_trace_test.py [NAME]
"""
# label: train adaptive
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cost_report_test import money, require_plot, rows_of  # noqa: E402
from program import Run, find_program, run_cases  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(SOURCE / "cmake"))
from run_example import matches  # noqa: E402

EXAMPLE = SOURCE / "examples" / "330_spot_trace"
SECONDS = 240.0
TRACE = "0 notice\n0 arrive  # at once\n\n0 lost\n0 stop\n"


def script(folder, trace, *more):
    path = pathlib.Path(folder, "trace")
    path.write_text(trace)
    return [sys.executable, EXAMPLE / "play.py", find_program("skein"), find_program("320_adaptive_mnist"), "--trace", path, "--runs", "runs", *more]


def as_it_is():
    """All four see each event and stop, and the table has a row of each; plots have the points of the rows."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        with Run(script(folder, TRACE, "--workers", 2, "--values", 0, "--samples", 1600, "--test", 200, "--epochs", 1000, "--lr", 5, "--eval-every", 1), cwd=folder) as run:
            run.check(run.wait(SECONDS) == 0, "it failed")
            expected = (EXAMPLE / "330_spot_trace.expected").read_text().splitlines()
            at = matches(expected, run.stdout.splitlines())
            run.check(at < 0, f"line {at + 1} of 330_spot_trace.expected was not met")
            run.check_nothing_left()
            runs = pathlib.Path(folder, "runs")
            folders = [str(runs / name) for name in ("fixed-restarted", "fixed-elastic", "adaptive-restarted", "adaptive-elastic")]
            for path in folders:
                log = pathlib.Path(path + ".log").read_text()
                changes, starts = log.count("the run goes on with"), len(re.findall(r"^DDP.*: pid ", log, re.MULTILINE))
                run.check((changes >= 3 and starts == 1) if path.endswith("elastic") else (changes == 0 and starts == 4),
                          f"{path}: {changes} changes of the workers, {starts} starts")
                kinds = rows_of(path)[-1]["worker_kinds"]
                run.check(list(kinds) == ["spot"], f"{path}: workers of the kinds {kinds}")
            require_plot(runs / "cost-seconds.svg", folders, "test_accuracy", lambda row: row["run_s"])
            require_plot(runs / "cost-money.svg", folders, "test_accuracy", lambda row: money(row, {"spot": 0.27}))


def stopped():
    """A signal ends it, with all that it has started."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        with Run(script(folder, "1000 notice\n", "--epochs", 100000), cwd=folder) as run:
            rows = pathlib.Path(folder, "runs", "fixed-restarted", "metrics.jsonl")
            run.wait_until(rows.exists, "rows", SECONDS)
            run.process.send_signal(signal.SIGTERM)
            run.check(run.wait(SECONDS) == 143, "it was not stopped")
            run.check_nothing_left()


def refused():
    """A trace that cannot be played is named with its line, before anything starts."""
    for trace, text in (("1 notise\n", "line 1: '1 notise' is not 'SECONDS EVENT'"), ("-1 notice\n", "line 1"), ("1\n", "line 1"), ("nan lost\n", "line 1"),
                        ("2 notice\n1 arrive\n", "line 2: 1 s is before the event above it"), ("# nothing\n", "has no events"),
                        ("1 arrive\n", "line 1: 3 workers behind it; a job of --workers 2 has 1 to 2"),
                        ("1 stop\n2 lost\n", "line 2: nothing comes behind a stop"),
                        ("1 notice\n1 notice\n", "line 2: 0 workers behind it")):
        with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
            with Run(script(folder, trace, "--workers", 2), cwd=folder) as run:
                run.check(run.wait(SECONDS) == 2 and text in run.stderr, f"{trace!r}: no {text!r}")
                run.check(not pathlib.Path(folder, "runs").exists(), "something has begun")
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        pathlib.Path(folder, "runs").mkdir()
        with Run(script(folder, TRACE), cwd=folder) as run:
            run.check(run.wait(SECONDS) == 2 and "runs is there already" in run.stderr, "a folder is taken twice")
        with Run([*script(folder, TRACE), "--trace", "nowhere"], cwd=folder) as run:
            run.check(run.wait(SECONDS) == 2 and "cannot read the trace nowhere" in run.stderr, "no trace")


if __name__ == "__main__":
    run_cases([("as it is", as_it_is), ("stopped", stopped), ("refused", refused)], sys.argv[1] if len(sys.argv) > 1 else None)

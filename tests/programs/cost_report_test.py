#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein report cost: what it says is what forty lines here make of the same rows, of runs that people write and of one whose workers change.

    cost_report_test.py [WORD]     WORD: only the cases with it in their name
"""
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, environment, find_program, run_cases  # noqa: E402

PRICES = {"trainer": 0.9, "spot": 0.27}
VALUES = [0.5, 0.8, 0.9, 0.999]


def tool(*arguments, code=0):
    done = subprocess.run([find_program("skein"), "report", "cost", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, env=environment(), check=False)
    assert done.returncode == code, f"{arguments}: {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def refused(*arguments, says, code=1):
    """One line that says it, and nothing is written."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as plots:
        out, err = tool(*arguments, "--plots", plots, code=code)
        assert not out and len(err.splitlines()) == 1 and len(err) < 1500, f"{arguments}: not one line\n{out}{err}"
        assert says in err, f"{arguments}: no '{says}' in {err}"
        assert not os.listdir(plots), f"{arguments}: something is written"


def write_run(folder, seed, world=lambda step: 1 + step % 3, steps=400):
    """Rows as a run has them: accuracy every tenth step, workers that come and go, half of them spot."""
    draw = random.Random(seed)
    folder.mkdir()
    rows, seconds, workers, spot = [], 0.0, 0.0, 0.0
    for step in range(1, steps + 1):
        passed = draw.uniform(0.5, 1.5)
        seconds, workers, spot = seconds + passed, workers + passed * world(step), spot + passed * (world(step) // 2)
        row = {"step": step, "loss": 2 / step, "lr": 0.1, "world": world(step), "run_s": seconds, "worker_s": workers, "unix_s": 1e9 + seconds}
        if spot:
            row["worker_kinds"] = {"spot": spot}
        if step % 10 == 0:
            row["test_accuracy"] = 1 - 0.9 * 0.99 ** step + draw.uniform(-0.01, 0.01)
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


# ---- the forty lines -----------------------------------------------------------------------------

def rows_of(run):
    """The whole rows: a run that goes on may have written half of its last line."""
    text = pathlib.Path(run, "metrics.jsonl").read_text()
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def money(row, prices):
    kinds, first = row.get("worker_kinds", {}), next(iter(prices.values()))
    named = sum(seconds * prices[kind] for kind, seconds in kinds.items())
    return (named + (row["worker_s"] - sum(kinds.values())) * first) / 3600


def to_values(run, metric, values, prices, higher=True):
    found = []
    for value in values:
        reached = [row for row in rows_of(run) if metric in row and (row[metric] >= value if higher else row[metric] <= value)]
        if not reached:
            found.append(None)
            continue
        row = reached[0]
        found.append((row["step"], row["run_s"], row["worker_s"], money(row, prices)))
    return found


def drawn(svg):
    """The points of each line of a plot, in pixels."""
    paths = re.findall(r'<path d="([^"]*)" fill="none" stroke="#\w+" stroke-width="1.8"', pathlib.Path(svg).read_text())
    return [[tuple(map(float, point)) for point in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)] for path in paths]


def pixels(lines):
    """Where a plot of 760 by 420 has to have them."""
    xs, ys = [x for line in lines for x, _ in line], [y for line in lines for _, y in line]
    margin = 0.06 * (max(ys) - min(ys))
    low, high = (0 if 0 <= min(ys) < margin else min(ys) - margin), max(ys) + margin
    return [[(64 + (x - min(xs)) / (max(xs) - min(xs)) * (740 - 64), 372 - (y - low) / (high - low) * (372 - 44)) for x, y in line] for line in lines]


def require_plot(svg, runs, metric, cost):
    lines = [[(cost(row), row[metric]) for row in rows_of(run) if metric in row] for run in runs]
    for ours, theirs in zip(pixels(lines), drawn(svg), strict=True):
        for (x, y), (drawn_x, drawn_y) in zip(ours, theirs, strict=True):
            assert abs(x - drawn_x) < 0.06 and abs(y - drawn_y) < 0.06, f"{svg}: ({drawn_x}, {drawn_y}), not ({x}, {y})"


def require_report(runs, metric, values, folder, higher=True):
    prices = ",".join(f"{kind}={price}" for kind, price in PRICES.items())
    asked = [*runs, "--metric", metric, "--values", ",".join(map(str, values)), "--prices", prices, "--plots", folder]
    said = json.loads(tool(*asked, "--json")[0])
    assert [run["folder"] for run in said["runs"]] == list(runs)
    table = tool(*asked)[0].splitlines()[1:-1]
    for run, of in zip(runs, said["runs"], strict=True):
        for wanted, got in zip(to_values(run, metric, values, PRICES, higher), of["values"], strict=True):
            line = next(line.split() for line in table if line.split()[:2] == [f"{got['value']:.6g}", run])
            if wanted is None:
                assert "step" not in got and line[2] == "never:", (got, line)
                continue
            assert (got["step"], got["seconds"], got["worker_seconds"]) == wanted[:3], (got, wanted)
            assert abs(got["money"] - wanted[3]) <= 1e-12 * wanted[3], (got, wanted)
            assert line[2:] == [str(wanted[0]), f"{wanted[1]:.1f}", f"{wanted[2]:.1f}", f"{wanted[3]:.6f}"], (line, wanted)
    require_plot(pathlib.Path(folder, "cost-seconds.svg"), runs, metric, lambda row: row["run_s"])
    require_plot(pathlib.Path(folder, "cost-money.svg"), runs, metric, lambda row: money(row, PRICES))


# ---- cases ---------------------------------------------------------------------------------------

def same_numbers():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        scratch = pathlib.Path(folder)
        runs = [write_run(scratch / "fixed", 1, lambda step: 1), write_run(scratch / "elastic", 2), write_run(scratch / "steps", 3, lambda step: 1 + step // 100)]
        require_report(runs, "test_accuracy", VALUES, scratch / "plots")
        require_report(runs, "loss", [1.0, 0.1, 0.001], scratch / "plots", higher=False)
        said = json.loads(tool(*runs, "--json", "--plots", folder)[0])   # nothing is named
        assert said["metric"] == "test_accuracy" and said["better"] == "higher", said
        values = said["runs"][0]["values"]
        assert len(values) >= 3 and all("step" in value and "money" not in value for run in said["runs"] for value in run["values"]), values
        assert "by worker-seconds" in (scratch / "cost-money.svg").read_text()
        _, err = tool(*runs, "--prices", "spot=1,trainer=2", "--plots", folder)
        assert "no run has workers of kind 'trainer'" in err, err


def bad_input():
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        scratch = pathlib.Path(folder)
        run = write_run(scratch / "run", 1)
        for prices, says in (("trainer", "has no '='"), ("trainer=-1", "is negative"), ("trainer=much", "is no number"), ("trainer=1,trainer=2", "second of its kind"),
                             ("a b=1", "has no kind")):
            refused(run, "--prices", prices, says=says, code=2)
        refused(run, "--prices", "trainer=1", says="workers of kind 'spot' have no price")
        refused(run, "--values", "0.9,much", says="--values: 'much' is no number", code=2)
        refused(run, "--lower", "--higher", says="--lower", code=2)
        refused(says="runs is required", code=2)
        refused(run, "--metric", "test_acuracy", says="no row has a 'test_acuracy'")
        refused(run, scratch / "nowhere", says="is no folder of a run")
        refused(run, scratch, says="is no folder of a run: it has no metrics.jsonl")
        for name, text, says in (("empty", "", "no metric in common"), ("old", '{"step":1,"test_accuracy":0.5}\n', "has no times of workers"),
                                 ("other", '{"step":1,"x":1,"world":1,"run_s":1,"worker_s":1}\n', "no metric in common"), ("text", "hello\n", "no metric in common")):
            (scratch / name).mkdir()
            (scratch / name / "metrics.jsonl").write_text(text)
            refused(run, scratch / name, says=says)
        refused(scratch / "text", "--metric", "loss", says="line 1")
        refused(scratch / "empty", "--metric", "loss", says="no rows yet")
        rows = pathlib.Path(run, "metrics.jsonl").read_text()
        (scratch / "cut").mkdir()
        (scratch / "cut" / "metrics.jsonl").write_text(rows[:-30])
        out, err = tool(scratch / "cut", "--plots", folder)
        assert "the last row of" in err and "is not whole" in err and out, err
        (scratch / "middle").mkdir()
        (scratch / "middle" / "metrics.jsonl").write_text(rows[:1000] + "\n" + rows[1000:])
        refused(scratch / "middle", says="metrics.jsonl line ")
        (scratch / "plot").write_text("a file")
        _, err = tool(run, "--plots", scratch / "plot", code=1)
        assert len(err.splitlines()) == 1 and "plot" in err, err


def workers_that_change():
    """Between two rows worker-seconds are seconds times workers; nothing that was paid for is forgotten by a resume."""
    with tempfile.TemporaryDirectory(prefix="skein-test-") as folder:
        asked, runs = pathlib.Path(folder, "asked"), pathlib.Path(folder, "runs")
        asked.mkdir()
        command = [find_program("skein_elastic"), "--workers", "1:3", "--runs", runs, "--asked", asked, "--pause", "5", "--checkpoint-every", "20"]

        def rows(least=1):
            found = rows_of(runs / "elastic") if (runs / "elastic/metrics.jsonl").exists() else []
            return found if len(found) >= least else None

        with Run(command, SKEIN_WORKER_KIND="spot") as run:
            run.wait_until(lambda: (r := rows(30)) and r[-1]["world"] == 3, "rows of three workers")
            views = re.findall(r"pid ((?:\d+ ?)+)", run.stderr)
            first = int(views[-1].split()[0])
            os.kill(first, signal.SIGKILL)                      # the one that writes
            run.wait_until(lambda: (r := rows()) and 2 in {row["world"] for row in r[30:]}, "rows of two workers")
            run.wait_until(lambda: rows()[-1]["world"] == 3, "rows of three workers again")
            at = len(rows())
            run.wait_until(lambda: rows(at + 30), "further rows")
            (asked / "stop").write_text("")
            run.check(run.wait(60) == 0, "it failed")
        before = rows()
        (asked / "stop").unlink()
        with Run([*command, "--resume"]) as run:                # no kind
            run.wait_until(lambda: rows(len(before) + 20), "rows behind the resume")
            (asked / "stop").write_text("")
            run.check(run.wait(60) == 0, "it failed")
        found = rows()
        for a, b in zip(found, found[1:]):
            passed, paid = b["run_s"] - a["run_s"], b["worker_s"] - a["worker_s"]
            worlds = sorted((a["world"], b["world"]))
            if b["step"] != before[-1]["step"] + 1:             # that one has the start of other processes in it
                assert worlds[0] * passed - 1e-6 <= paid <= worlds[1] * passed + 1e-6, (a, b)
            assert passed >= 0 and paid >= 0, (a, b)
        assert {row["world"] for row in found} >= {2, 3}
        last = before[-1]
        assert abs(last["worker_kinds"]["spot"] - last["worker_s"]) < 1e-6, last
        assert found[-1]["worker_kinds"] == last["worker_kinds"] and found[-1]["worker_s"] > last["worker_s"], found[-1]
        assert abs(last["unix_s"] - before[0]["unix_s"] - (last["run_s"] - before[0]["run_s"])) < 2.0, "seconds that are lost"
        require_report([str(runs / "elastic")], "loss", [0.5, 0.0], folder, higher=False)


if __name__ == "__main__":
    run_cases([("a report has the numbers of the rows, and so have its plots", same_numbers),
               ("what is wrong is said in one line", bad_input),
               ("workers that change, die, and are resumed", workers_that_change)], sys.argv[1] if len(sys.argv) > 1 else None)

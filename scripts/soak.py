#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""soak.py MINUTES [PART...] [--at-once N] [--keep]: what scripts/soak runs when everything is built.

A part is a program that runs until it is told to end. Its processes are looked at again and again; of each process that was
there all the while the smallest and the median of the second third are compared with those of the last third, of the files
below its folder the smallest (a checkpoint that is being written has some for a moment). Both rise where something is lost;
one of them also rises by chance where a program's need goes up and down. Resident memory says little of loaders: free memory
stays in arenas of threads that are gone. They tell what is allocated while none is there, which is exact.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "programs"))
from jobs_test import Jobs, ask  # noqa: E402
from program import Run, find_program, write_text  # noqa: E402

MORE = 0.05              # may come in the last third
# What is small may grow by so much: a page of a stack that was never needed before is no leak.
SLACK = {"memory": 2 << 20, "allocated": 64 << 10, "descriptors": 2, "threads": 1, "files": 8}    # of files: a checkpoint that is written and one that is removed


def say(text):
    print(text, flush=True)


# ---- looking -------------------------------------------------------------------------------------

def look_at(pid):
    """Bytes that are this process's (not those of mapped files), descriptors, threads; None: it is gone."""
    try:
        folder = pathlib.Path("/proc", str(pid))
        status = (folder / "status").read_text()
        kib = sum(int(found) for found in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.M))
        return {"memory": kib << 10, "descriptors": len(os.listdir(folder / "fd")), "threads": len(os.listdir(folder / "task"))}
    except OSError:
        return None


def name_of(pid):
    try:
        words = pathlib.Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join([pathlib.Path(words[0]).name, *words[1:2]]).strip()
    except OSError:
        return "?"


class Growth:
    """What was seen, in thirds."""

    def __init__(self, seconds, grows=()):
        self.begin = time.monotonic()
        self.seconds, self.grows = seconds, grows
        self.seen = {}    # (who, what) -> {third: what was seen}
        self.looks = [0, 0, 0]
        self.told = []    # (who, what, second third, last third) of what a program counted itself

    def third(self):
        return min(2, int(3 * (time.monotonic() - self.begin) / self.seconds))

    def look(self, pids, folder):
        third = self.third()
        self.looks[third] += 1
        for pid in pids:
            for what, value in (look_at(pid) or {}).items():
                self.add((f"{pid} {name_of(pid)}", what), third, value)
        files = sum(len(names) for _, _, names in os.walk(folder))
        self.add(("its folder", "files"), third, files)

    def add(self, key, third, value):
        self.seen.setdefault(key, {}).setdefault(third, []).append(value)

    def add_counted(self, who, what, values):
        third = len(values) // 3
        assert third, f"{who} told {len(values)} times of '{what}'"
        self.told.append((who, what, values[third:2 * third], values[2 * third:]))

    def compared(self):
        """(who, what, second third, last third) of all that was there for both thirds."""
        yield from self.told
        for (who, what), thirds in sorted(self.seen.items()):
            if 1 in thirds and 2 in thirds and len(thirds[1]) >= self.looks[1] // 2:
                yield who, what, thirds[1], thirds[2]

    def findings(self):
        found = []
        for who, what, second, last in self.compared():
            measures = [min] if what == "files" else [min, statistics.median_high]
            pairs = [(of(second), of(last)) for of in measures]
            if what not in self.grows and all(after > before * (1 + MORE) + SLACK[what] for before, after in pairs):
                found.append(f"{what} of {who}: {pairs[-1][0]} in the second third, {pairs[-1][1]} in the last one")
        return found

    def largest(self):
        """Of the last third, over all processes; of files the smallest."""
        most = {}
        for _, what, _, last in self.compared():
            most[what] = max(most.get(what, 0), min(last) if what == "files" else max(last))
        return most


# ---- parts ---------------------------------------------------------------------------------------

def watch(run, seconds, folder, growth=None, each=lambda: None):
    """Looks until the time is over; it must not end before."""
    growth = growth or Growth(seconds)
    while time.monotonic() < growth.begin + seconds:
        run.check(run.process.poll() is None, f"it ended with {run.process.returncode}")
        growth.look(run.marked.processes(), folder)
        each()
        time.sleep(min(1.0, seconds / 120))    # to look costs milliseconds of a core
    return growth


def end_by_signal(run, codes):
    run.process.send_signal(signal.SIGTERM)
    code = run.wait(120)
    run.check(code in codes, f"it ended with {code}")
    run.check_nothing_left()


def training(strategy, communicator):
    """Steps, evaluations and checkpoints without end, with blocks of memory that are large beside what keeps books of them."""
    def part(seconds, folder):
        text = write_text(folder, 200_000)
        words = ["--strategy", strategy, "--workers", "1" if strategy == "single" else "2", "--text", text, "--runs", folder / "runs",
                 "--steps", "100000000", "--layers", "2", "--dim", "128", "--heads", "4", "--context", "128", "--batch", "8",
                 "--eval-every", "10", "--eval-samples", "8", "--checkpoint-every", "10", "--sample", "0", "--plain"]
        if communicator:
            words += ["--communicator", communicator]
        with Run([find_program("120_gpt_fsdp"), *words], cwd=folder) as run:
            run.wait_until(lambda: next(iter((folder / "runs").glob("*/checkpoints/step-*")), None), "first checkpoint")
            growth = watch(run, seconds, folder)
            end_by_signal(run, (0, 130, 143))
            table = next((folder / "runs").glob("*/metrics.csv"))
            return growth, f"{table.read_bytes().count(10) - 1} rows"
    return part


def elastic(seconds, folder):
    """A worker is killed again and again, the first one of the world too."""
    each = max(5.0, min(60.0, seconds / 12))
    words = ["--workers", "1:3", "--epochs", "1000000", "--samples", "2000", "--test", "100", "--eval-every", "20", "--checkpoint-every", "20",
             "--max-failures", "1000000", "--runs-dir", folder / "runs", "--plain"]
    with Run([find_program("300_elastic_mnist"), *words], cwd=folder) as run:
        run.wait_until(lambda: next(iter((folder / "runs").glob("*/checkpoints/step-*")), None), "first checkpoint")
        draw = random.Random(1)
        kills = [0, time.monotonic() + each]

        def kill():
            if time.monotonic() < kills[1]:
                return
            workers = run.children()
            if workers:
                # The oldest one stays, so that somebody is there for all of it.
                hit = draw.choice(sorted(workers, key=started)[1:] or workers)
                os.kill(hit, signal.SIGKILL)
                kills[0] += 1
            kills[1] = time.monotonic() + each

        growth = watch(run, seconds, folder, each=kill)
        end_by_signal(run, (0, 130, 143))
        return growth, f"{kills[0]} losses"


def started(pid):
    try:
        return int(pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return 0


def soak_program(words, seconds, folder, growth):
    with Run([find_program("skein_soak"), words[0], str(int(seconds) + 3), *words[1:]], cwd=folder) as run:
        watch(run, seconds, folder, growth)
        code = run.wait(120)
        run.check(code == 0, f"it ended with {code}")
        run.check_nothing_left()
        return run.stdout.splitlines()


def tasks(seconds, folder):
    growth = Growth(seconds)
    return growth, soak_program(["tasks", "--workers", "2"], seconds, folder, growth)[-1]


def loader(seconds, folder):
    growth = Growth(seconds, grows=("memory",))
    *told, last = soak_program(["loader"], seconds, folder, growth)
    growth.add_counted("this process between loaders", "allocated", [int(line.split()[0]) for line in told])
    return growth, last


def head(seconds, folder):
    """Jobs that come and go, some of them failing, and somebody who looks at the page all the while."""
    with Jobs([("n1", [])], state=True) as c:
        view = c.tool("dashboard", c.address, "--key", "view")[1].strip()
        change = c.tool("dashboard", c.address, "--key", "submit")[1].strip()
        # The agent keeps the folders of 32 jobs, and the head's log is written anew from time to time.
        growth = Growth(seconds, grows=("files",))
        count = 0
        while time.monotonic() < growth.begin + seconds:
            name = f"job-{count}"
            entry = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done" + ("; exit 3" if count % 4 == 3 else "")
            status, text, _ = ask(c, "POST", "/api/jobs/", json.dumps({"entrypoint": entry, "submission_id": name}), change)
            assert status == 200, (status, text)
            c.wait_until(lambda: json.loads(ask(c, "GET", f"/api/jobs/{name}", key=view)[1])["status"] in ("SUCCEEDED", "FAILED"), f"end of {name}")
            for path in ("/api/v1/jobs", "/api/v1/nodes", f"/api/v1/jobs/{name}/lines", "/metrics", "/api/v1/samples"):
                status, text, _ = ask(c, "GET", path, key=view)
                assert status == 200, (path, status, text)
            status, text, _ = ask(c, "DELETE", f"/api/jobs/{name}", key=change)
            assert status == 200, (status, text)
            count += 1
            growth.look([c.head.process.pid, *[n.process.pid for n in c.nodes.values()]], folder)
        c.end()
        return growth, f"{count} jobs"


PARTS = {
    "single": training("single", None),
    "ddp-shm": training("ddp", "shm"),
    "ddp-ring": training("ddp", "ring"),
    "zero1-shm": training("zero1", "shm"),
    "zero2-shm": training("zero2", "shm"),
    "fsdp-shm": training("fsdp", "shm"),
    "fsdp-ring": training("fsdp", "ring"),
    "hybrid-shm": training("hybrid", None),
    "elastic": elastic,
    "loader": loader,
    "tasks": tasks,
    "head": head,
}


# ---- all of them -----------------------------------------------------------------------------------

class Soak:
    def __init__(self, names, seconds, at_once, keep):
        self.waiting, self.seconds, self.keep = list(names), seconds, keep
        self.told, self.guard = [], threading.Lock()
        self.threads = [threading.Thread(target=self.work) for _ in range(at_once)]

    def run(self):
        for each in self.threads:
            each.start()
        for each in self.threads:
            each.join()
        return self.told

    def work(self):
        while True:
            with self.guard:
                if not self.waiting:
                    return
                name = self.waiting.pop(0)
            folder = pathlib.Path(tempfile.mkdtemp(prefix=f"skein-soak-{name}-"))
            try:
                growth, done = PARTS[name](self.seconds, folder)
                found, most = growth.findings(), growth.largest()
                assert most, "no process was there for the second and the last third"
            except BaseException as why:    # a finding, whatever it is: the other parts go on
                found, most, done = [str(why) or traceback.format_exc()], {}, "ended early"
            with self.guard:
                self.told.append({"part": name, "done": done, **most, "findings": found})
                what = ", ".join(f"{k} {v >> 20} MiB" if k == "memory" else f"{k} {v >> 10} KiB" if k == "allocated" else f"{k} {v}" for k, v in most.items())
                say(f"{'FAILED' if found else 'ok    '}  {name:10}  {done}; at most {what}")
                for each in found:
                    say(f"        {each}")
            if not (found and self.keep):
                shutil.rmtree(folder, ignore_errors=True)


def main():
    asking = argparse.ArgumentParser()
    asking.add_argument("minutes", type=float)
    asking.add_argument("parts", nargs="*")
    asking.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)))
    asking.add_argument("--keep", action="store_true", help="folders of parts that failed")
    asked = asking.parse_args()
    for name in asked.parts:
        if name not in PARTS:
            sys.exit(f"no part '{name}'; there are: {' '.join(PARTS)}")
    if asked.minutes <= 0:
        say(" ".join(PARTS))
        return 0
    names = asked.parts or list(PARTS)
    at_once = max(1, min(asked.at_once, len(names)))
    rounds = -(-len(names) // at_once)
    told = Soak(names, asked.minutes * 60 / rounds, at_once, asked.keep).run()
    failed = sum(1 for each in told if each["findings"])
    say(json.dumps({"soak": {"minutes": asked.minutes, "parts": len(told), "failed": failed, "told": told}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

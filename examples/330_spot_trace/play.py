#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""play.py SKEIN PROGRAM [--trace FILE] [--workers N] [--runs DIR] [--values A,B] [--prices P] [arguments of the program...]

    examples/330_spot_trace/play.py build/clang/bin/skein build/clang/examples/320_adaptive_mnist

What workers that come and go cost: a trace of notices, losses and arrivals is played to four runs of 320_adaptive_mnist, all on this
host. Their batch is fixed or adaptive, and an event is a restart with another number of workers, or the job is elastic. Behind them
`skein report cost` makes a table and two plots.
"""
import argparse
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CHANGES = {"notice": -1, "arrive": +1, "lost": 0, "stop": 0}


def fail(what, code=1):
    sys.stderr.write(f"play.py: {what}\n")
    sys.exit(code)


def read_trace(path, workers):
    """(seconds, event, workers from then on) of each line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as why:
        fail(f"cannot read the trace {path}: {why}", 2)
    events, now = [], workers
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        where = f"{path} line {number}"
        if len(words) != 2 or not re.fullmatch(r"\d+(\.\d+)?", words[0]) or words[1] not in CHANGES:
            fail(f"{where}: '{line}' is not 'SECONDS EVENT' with one of the events {', '.join(CHANGES)}", 2)
        seconds, now = float(words[0]), now + CHANGES[words[1]]
        if events and seconds < events[-1][0]:
            fail(f"{where}: {words[0]} s is before the event above it; sort the lines", 2)
        if not 1 <= now <= workers:
            fail(f"{where}: {now} workers behind it; a job of --workers {workers} has 1 to {workers}", 2)
        if events and events[-1][1] == "stop":
            fail(f"{where}: nothing comes behind a stop", 2)
        events.append((seconds, words[1], now))
    if not events:
        fail(f"{path} has no events", 2)
    return events


class Job:
    """One run of the program, in one process tree or, if it is restarted, in several one after the other."""

    def __init__(self, o, name, arguments):
        self.folder, self.name = o.runs / name, name
        self.command = [o.program, "--plain", "--runs-dir", o.runs, "--name", name, "--checkpoint-every", "50", *arguments]
        self.log = o.runs / (name + ".log")
        self.process = None

    def start(self, workers, *more):
        self.begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*map(str, self.command), "--workers", str(workers), *more], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)

    def ended(self):
        return self.process.poll() is not None

    def lines(self):
        """What this process tree has said."""
        with self.log.open("rb") as log:
            log.seek(self.begun)
            return log.read().decode(errors="replace")

    def worlds(self):
        """The process ids of each world, in the order of ranks."""
        return [[int(pid) for pid in found.split()] for found in re.findall(r": pid (\d+(?: \d+)*)[;\n]", self.lines())]

    def trains(self):
        """Whether there was a step."""
        return re.search(rf"^{self.name} +\d+/\d+ ", self.lines(), re.MULTILINE)

    def until(self, condition):
        """Looks until it holds; false if the job has ended before."""
        while not condition():
            if self.ended():
                return False
            time.sleep(0.02)
        return True

    def stop(self, how):
        """The whole job; whether it was not over before."""
        (os.killpg if how == signal.SIGKILL else os.kill)(self.process.pid, how)
        return self.process.wait() != 0

    def require_end(self, stopped):
        if self.process.wait() not in ((0, 128 + signal.SIGTERM, -signal.SIGTERM) if stopped else (0,)):
            fail(f"{self.name} has ended with {self.process.returncode}:\n" + self.log.read_text(errors="replace")[-2000:])


# [events]
def elastic(o, job, event, workers):
    """The others go on. Whether the job was there to see it."""
    seen = len(job.worlds())
    try:
        if event == "notice":
            os.kill(job.worlds()[-1][-1], signal.SIGTERM)
        elif event == "lost":
            os.kill(job.worlds()[-1][-1], signal.SIGKILL)  # another one starts by itself
        elif subprocess.run([o.skein, "scale", str(job.process.pid), str(workers)], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            return job.until(lambda: False)                # the job is about to end
    except ProcessLookupError:
        return job.until(lambda: False)
    return job.until(lambda: len(job.worlds()) > seen and len(job.worlds()[-1]) == workers)


def restarted(o, job, event, workers):
    """All stop, with a checkpoint if there is time for one, and start again from the newest."""
    if not job.stop(signal.SIGKILL if event == "lost" else signal.SIGTERM):
        return False
    job.start(workers, "--resume")
    return job.until(job.trains)
# [/events]


def play(o, name, events, on_event, arguments):
    job, played, stopped = Job(o, name, arguments), 0, False
    begin = since = time.monotonic()
    there, paid = o.workers, 0.0    # workers, and their seconds, from the first start to the end
    try:
        job.start(f"1:{o.workers}" if on_event is elastic else o.workers)
        if job.until(job.trains):
            first_step = time.monotonic()
            for seconds, event, workers in events:
                if not job.until(lambda at=first_step + seconds: time.monotonic() >= at):
                    break
                now = time.monotonic()
                there, since, paid = workers, now, paid + there * (now - since)
                if event == "stop":
                    stopped = job.stop(signal.SIGTERM)
                elif not on_event(o, job, event, workers):
                    break
                played += 1
        job.require_end(stopped)
    finally:
        if job.process is not None and not job.ended():
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
    end = time.monotonic()
    last = json.loads((job.folder / "metrics.jsonl").read_text().splitlines()[-1])
    print(f"{name}: {played} of {len(events)} events, {last['step']} steps; with all starts {end - begin:.1f} s, "
          f"{paid + there * (end - since):.1f} worker-seconds", flush=True)


def stop(number, _):
    sys.exit(128 + number)


def main():
    parser = argparse.ArgumentParser(description="Plays a trace of workers that come and go to four runs, and says what they cost.")
    parser.add_argument("skein", help="the program skein")
    parser.add_argument("program", help="the program 320_adaptive_mnist")
    parser.add_argument("--trace", type=pathlib.Path, default=HERE / "spot.trace", help="lines of seconds and an event")
    parser.add_argument("--workers", type=int, default=3, help="of the beginning, and at most")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs-spot"), help="a new folder for runs and plots")
    parser.add_argument("--values", default="0.9,0.97", help="accuracies of the test")
    parser.add_argument("--prices", default="spot=0.27", help="money per hour of a worker; all are of the kind spot")
    o, arguments = parser.parse_known_args()
    events = read_trace(o.trace, o.workers)
    if o.runs.exists():
        fail(f"{o.runs} is there already; name another folder by --runs", 2)
    o.runs.mkdir(parents=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.update(SKEIN_TOKEN=secrets.token_hex(32), SKEIN_WORKER_KIND="spot")
    # [runs]
    runs = []
    for batch, words in (("fixed", ["--fixed"]), ("adaptive", ["--decide-every", "1"])):
        for on_event in (restarted, elastic):
            name = f"{batch}-{on_event.__name__}"
            play(o, name, events, on_event, [*words, "--max-failures", "100", *arguments])
            runs.append(str(o.runs / name))
    report = [o.skein, "report", "cost", "--prices", o.prices, "--metric", "test_accuracy", "--values", o.values, "--plots", str(o.runs), *runs]
    # [/runs]
    sys.stdout.flush()
    sys.exit(subprocess.run(report, check=False).returncode)


if __name__ == "__main__":
    main()

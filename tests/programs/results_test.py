#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What jobs leave behind on a cluster of real processes whose nodes share no folder: kept by the head, brought back, and bounded.

    results_test.py [NAME]
"""
# label: runtime
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import SECONDS, Jobs  # noqa: E402
from program import run_cases  # noqa: E402

WRITES = """mkdir -p runs/a/checkpoints out models/deep
echo "step,loss" > runs/a/metrics.csv
head -c 3000000 /dev/zero | tr '\\0' "$SKEIN_JOB_ATTEMPT" > runs/a/checkpoints/weights
echo text > out/words.txt
echo no > out/other.log
echo deep > models/deep/weights
: > out/empty.txt
ln -s /etc/passwd out/link.txt
"""


def tree(folder):
    """Paths and contents of the files of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file() and not p.is_symlink()}


def node_folder(c, job):
    """Where a node has run it."""
    return next((c.folder / "home/.cache/skein").glob(f"node-*/jobs/{job}-*"))


def fetched():
    """Runs and results come back as they are on the node; again nothing is fetched, and a part of them can be."""
    with Jobs() as c:
        folder = c.folder_of("first", WRITES)
        (folder / "runs" / "old").mkdir(parents=True)
        (folder / "runs" / "old" / "metrics.csv").write_text("of another time\n")
        c.job("submit", "--id", "one", "--working-dir", folder, "--results", "out/*.txt", "--results", "models", "--", "./run.sh")
        out, err = c.job("fetch", "one")
        assert out == "5 files of attempt 1 in one: 2.9 MiB fetched\n" and not err, (out, err)
        wanted = {k: v for k, v in tree(node_folder(c, "one")).items() if k in
                  ("runs/a/metrics.csv", "runs/a/checkpoints/weights", "out/words.txt", "out/empty.txt", "models/deep/weights")}
        assert tree(c.cwd / "one") == wanted, tree(c.cwd / "one").keys()
        assert "there is a job one" not in c.job("status", "one")[0]
        assert re.search(r"results +attempt 1: 5 files, 2.9 MiB, from n\d", c.job("status", "one")[0]), c.job("status", "one")
        out, _ = c.job("fetch", "one")
        assert out == "5 files of attempt 1 in one: 0 bytes fetched, 5 were there\n", out
        out, _ = c.job("fetch", "one", "out/words.txt", "--to", "some")
        assert list(tree(c.cwd / "some")) == ["out/words.txt"], out
        out, _ = c.job("fetch", "one", "runs/", "--to", "runs")
        assert list(tree(c.cwd / "runs")) == ["runs/a/checkpoints/weights", "runs/a/metrics.csv"], out
        out, _ = c.job("fetch", "one", "--list")
        assert out.split() == ["5", "models/deep/weights", "0", "out/empty.txt", "5", "out/words.txt", "3,000,000", "runs/a/checkpoints/weights",
                               "10", "runs/a/metrics.csv"], out
        c.stop()


def in_the_way():
    """What is there and differs stays, unless it is to go; nothing is written through a link or out of the folder."""
    with Jobs() as c:
        c.job("submit", "--id", "one", "--working-dir", c.folder_of("first", WRITES), "--results", "out/*", "--", "./run.sh")
        there = c.cwd / "one" / "out"
        there.mkdir(parents=True)
        (there / "words.txt").write_text("mine\n")
        err = c.job("fetch", "one", code=1)[1]
        assert "a file in one has other content: out/words.txt" in err[0] and "--force" in err[0], err
        assert list(tree(c.cwd / "one")) == ["out/words.txt"], "it was half fetched"
        c.job("fetch", "one", "--force")
        assert (there / "words.txt").read_text() == "text\n"
        outside = c.folder / "outside"
        outside.mkdir()
        (c.cwd / "two").mkdir()
        (c.cwd / "two" / "out").symlink_to(outside)
        err = c.job("fetch", "one", "--to", "two", code=1)[1]
        assert "two/out is a link" in err[0], err
        (c.cwd / "three" / "out").mkdir(parents=True)
        (c.cwd / "three" / "out" / "words.txt").symlink_to(outside / "words.txt")
        err = c.job("fetch", "one", "--to", "three", "--force", code=1)[1]
        assert "three/out/words.txt is a link" in err[0], err
        assert not list(outside.iterdir()), "something was written outside"
        err = c.job("fetch", "one", "no/such", "--to", "four", code=1)[1]
        assert "job one has left no no/such" in err[0] and "--list" in err[0], err
        assert "there is no job" in c.job("fetch", "nobody", code=1)[1][0]
        for bad in ("/etc/*", "../x", "a/../b", ""):
            code, _, err = c.tool("job", "submit", "--results", bad, "--", "true", SKEIN_ADDRESS=c.address)
            assert code == 2 and "--results" in err[0], (bad, code, err)
        c.stop()


def bad_ends():
    """An attempt that fails, one that is stopped, and the one before the one that runs: each has left something."""
    with Jobs() as c:
        c.job("submit", "--id", "fails", "--results", "out", "--", "sh", "-c", "mkdir out; echo so far > out/a; exit 3", code=1)
        c.job("fetch", "fails")
        assert tree(c.cwd / "fails") == {"out/a": b"so far\n"}
        c.job("submit", "--id", "stops", "--no-wait", "--results", "out", "--", "sh", "-c", "mkdir out; echo so far > out/a; echo ready; exec sleep 1000")
        c.until("stops", "RUNNING")
        c.wait_until(lambda: c.job("logs", "stops")[0], "its word")
        err = c.job("fetch", "stops")[1]
        assert "stops is RUNNING, and nothing of it is kept yet" in err[0], err
        c.job("stop", "stops")
        c.until("stops", "STOPPED")
        c.job("fetch", "stops")
        assert tree(c.cwd / "stops") == {"out/a": b"so far\n"}
        script = "mkdir -p out; echo $SKEIN_JOB_ATTEMPT > out/a; test $SKEIN_JOB_ATTEMPT = 2 || exit 1; echo ready; exec sleep 1000"
        c.job("submit", "--id", "again", "--no-wait", "--retries", "1", "--results", "out", "--", "sh", "-c", script)
        c.wait_until(lambda: c.job("logs", "again")[0], "its word")
        out, err = c.job("fetch", "again")
        assert tree(c.cwd / "again") == {"out/a": b"1\n"} and "this is what is kept so far" in err[-1], (out, err)
        c.job("stop", "again")
        c.until("again", "STOPPED")
        c.job("fetch", "again", "--force")
        assert tree(c.cwd / "again") == {"out/a": b"2\n"}
        c.job("fetch", "again", "--attempt", "1", "--to", "first")
        assert tree(c.cwd / "first") == {"out/a": b"1\n"}
        assert "attempt 7 of job again" in c.job("fetch", "again", "--attempt", "7", code=1)[1][0]
        c.job("submit", "--id", "none", "--", "true")
        assert "nothing of it is kept" in c.job("fetch", "none", code=1)[1][0]
        c.stop()


def cut():
    """A fetch that is killed goes on where it was; a part that was damaged meanwhile is fetched anew."""
    with Jobs(nodes=(("n1", []),)) as c:
        script = "mkdir out; head -c 300000000 /dev/zero > out/large; echo x >> out/large"
        c.job("submit", "--id", "one", "--results", "out", "--", "sh", "-c", script)
        to = c.cwd / "one" / "out"
        run = c.run(c.skein, "job", "fetch", "one", SKEIN_ADDRESS=c.address)

        def part():
            return next((p for p in to.glob(".skein-part-*") if p.stat().st_size > 1 << 20), None)
        found = run.wait_until(part, "a part", SECONDS)
        os.killpg(run.process.pid, signal.SIGKILL)
        run.wait(SECONDS)
        size = found.stat().st_size
        assert (1 << 20) < size < 300000000, size
        out, _ = c.job("fetch", "one")
        left = int(re.search(r": (\d+)(?:\.\d)? MiB fetched", out).group(1))
        assert left <= (300000002 - size) / (1 << 20) + 1, (out, size)
        assert (to / "large").stat().st_size == 300000002 and not list(to.glob(".*")), list(to.iterdir())
        (to / "large").unlink()
        found.write_bytes(b"y" * 1000)
        err = c.job("fetch", "one", code=3)[1]
        assert "other bytes came" in err[-1], err    # a slow fetch says how far it is before
        c.job("fetch", "one")
        assert (to / "large").stat().st_size == 300000002
        c.end()


def no_room():
    """What does not fit is one line, and no failure of the job; a head that comes again has what was kept."""
    with Jobs(nodes=(("n1", []),), head=("--results-room", "2MiB", "--storage", "storage"), state=True) as c:
        c.job("submit", "--id", "small", "--results", "out", "--", "sh", "-c", "mkdir out; echo small > out/a")
        c.job("submit", "--id", "large", "--results", "out", "--", "sh", "-c", "mkdir out; head -c 3000000 /dev/zero > out/a")
        assert c.info("large")["state"] == "SUCCEEDED"
        shown = [line for line in c.job("status", "large")[0].splitlines() if "results" in line]
        assert len(shown) == 1 and "no results are kept: no room for 3000000 bytes" in shown[0], shown
        err = c.job("fetch", "large", code=1)[1]
        assert "no room for 3000000 bytes" in err[0], err
        os.kill(c.head.process.pid, signal.SIGKILL)
        c.head.wait(SECONDS)
        c.start_head(c.address)
        c.job("fetch", "small")
        assert tree(c.cwd / "small") == {"out/a": b"small\n"}
        for name in ("next", "last"):    # the second one needs the room of the first
            c.job("submit", "--id", name, "--results", "out", "--", "sh", "-c", "mkdir out; head -c 1500000 /dev/zero > out/a; echo $SKEIN_JOB >> out/a")
        c.job("fetch", "last")
        err = c.job("fetch", "next", code=1)[1]
        assert "its files were removed: newer ones needed their room" in err[0], err
        c.end()


def steps():
    """Checkpoints go to the head while the job runs; the next attempt, on a node without them, finds the newest there before it starts."""
    with Jobs() as c:
        go = c.cwd / "go"
        script = c.folder_of("first", f"""cat runs/gpt/checkpoints/step-*/shard runs/gpt/metrics.csv 2>/dev/null
ls runs/gpt/checkpoints 2>/dev/null
test $SKEIN_JOB_ATTEMPT = 1 || exit 0
mkdir -p runs/gpt/checkpoints/step-7.part
echo step > runs/gpt/metrics.csv
for n in 1 2 3 4 5; do
    mkdir -p runs/gpt/checkpoints/step-0$n.part
    head -c 2000000 /dev/zero | tr '\\0' $n > runs/gpt/checkpoints/step-0$n.part/large
    echo shard $n > runs/gpt/checkpoints/step-0$n.part/shard
    rm -rf runs/gpt/checkpoints/step-0$((n - 2))    # before: a look in between would find three, and keep them until the next step
    mv runs/gpt/checkpoints/step-0$n.part runs/gpt/checkpoints/step-0$n
    echo $n >> runs/gpt/metrics.csv
    echo wrote $n
    until test -e {go}$n; do sleep 0.02; done
done
kill -9 $$
""")
        c.job("submit", "--id", "one", "--no-wait", "--retries", "1", "--working-dir", script, "--", "./run.sh")
        for n in range(1, 6):
            c.wait_until(lambda: f"gpt/step-0{n} of attempt 1: 3 files" in c.job("status", "one")[0], f"step {n} at the head")
            if n == 3:
                out, err = c.job("fetch", "one")
                assert (c.cwd / "one/runs/gpt/checkpoints/step-03/shard").read_text() == "shard 3\n" and "so far" in err[-1], (out, err)
            if n == 5:
                first = c.info("one")["node"]
                c.tool("drain", first, "--address", c.address)
                shown = c.job("status", "one")[0]
                assert "step-04" in shown and "step-03" not in shown, shown    # as the training keeps them
            (c.cwd / f"go{n}").touch()
        c.until("one", "SUCCEEDED")
        assert c.info("one")["node"] != first
        said = c.job("logs", "one", "--attempt", "2")[0]
        # The table is taken with the step: what is written beside it at that moment may be in it.
        assert re.fullmatch(r"shard 5\nstep\n1\n2\n3\n4\n(5\n)?step-05\n", said), said
        c.end()


def agent_ends():
    """An agent that is told to end while it reads large results of a job that was stopped gives them up, and says so."""
    with Jobs(nodes=(("n1", []),)) as c:
        script = "mkdir out; truncate -s 1000G out/large; echo ready; exec sleep 1000"    # hours to read
        c.job("submit", "--id", "one", "--no-wait", "--results", "out", "--", "sh", "-c", script)
        c.wait_until(lambda: c.job("logs", "one")[0], "its word")
        stop = c.run(c.skein, "job", "stop", "one", SKEIN_ADDRESS=c.address)    # it waits for the end
        node = c.nodes.pop("n1")

        def reads():
            for fd in pathlib.Path(f"/proc/{node.process.pid}/fd").iterdir():
                try:
                    if os.readlink(fd).endswith("out/large"):
                        return True
                except FileNotFoundError:    # closed meanwhile
                    pass
            return False
        c.wait_until(reads, "the reading of its results")
        node.process.send_signal(signal.SIGTERM)
        node.wait(SECONDS)
        stop.wait(SECONDS)
        c.until("one", "STOPPED")
        shown = c.job("status", "one")[0]
        assert "no results are kept: a stop came while they were sent" in shown, shown
        c.end()


CASES = [("fetched", fetched), ("in the way", in_the_way), ("bad ends", bad_ends), ("cut", cut), ("no room", no_room), ("steps", steps), ("agent ends", agent_ends)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

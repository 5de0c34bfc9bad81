#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training sent as a job, its ranks on the nodes of a cluster: the same numbers as on one host, whoever dies on the way.

    job_ranks_test.py [NAME]

By events: output lines, ends of processes, rows of the run's table. Three hosts are network and UTS namespaces, where there may be some.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import Cluster, in_three_namespaces  # noqa: E402
from jobs_test import ask  # noqa: E402
from program import Run, find_program, run_cases  # noqa: E402

SECONDS = 240.0
STEPS = 24
ARGUMENTS = ["--text", "words.txt", "--steps", STEPS, "--layers", 1, "--dim", 32, "--heads", 2, "--context", 32, "--batch", 8, "--seed", 7,
             "--eval-every", 8, "--eval-samples", 16, "--checkpoint-every", 4, "--plain"]


def make_folder(at):
    """What a job brings: the program and its text."""
    at.mkdir()
    shutil.copy(find_program("110_gpt_ddp"), at / "train")
    (at / "words.txt").write_text("".join(f"the {i * i % 97}th word of {i} words\n" for i in range(4000)))
    return at


class Ranks(Cluster):
    """Nodes of three cpus each, a folder for runs that they share, and `skein job` at the head."""

    def __init__(self, nodes=("n1", "n2"), state=False, shared=True, listen="127.0.0.1:0"):
        self.is_shared = shared
        super().__init__([(name, ["--resources", "cpu=3"]) for name in nodes], listen, state=state)
        self.sent = make_folder(self.cwd / "sent")

    def start_head(self, listen):
        self.shared = self.folder / "runs"
        if self.is_shared and "--runs" not in self.head_arguments:
            self.head_arguments += ["--runs", self.shared]
        super().start_head(listen)

    def info(self, name):
        code, out, err = self.tool("job", "status", name, "--json", SKEIN_ADDRESS=self.address)
        assert code == 0, (out, err)
        return json.loads(out)

    def start(self, name, workers, *more, env="NONE=1"):
        return self.run(self.skein, "job", "submit", "--address", self.address, "--id", name, "--cpus", 1, "--env", env, "--working-dir", self.sent, "--",
                        "./train", "--workers", workers, *ARGUMENTS, *more)

    def table(self, name):
        found = list(self.shared.glob(f"{name}-*/gpt/metrics.csv"))
        assert len(found) <= 1, found
        return found[0].read_text() if found else ""

    def rows(self, name):
        return self.table(name).count("\n") - 1

    def local(self, workers, *more):
        """The same training on this host; its table."""
        folder = self.cwd / f"local{workers}"
        make_folder(folder)
        with Run([folder / "train", "--workers", workers, *ARGUMENTS, *more], cwd=folder, **self.env) as run:
            run.check(run.wait(SECONDS) == 0, "it failed")
            table = (folder / "runs/gpt/metrics.csv").read_text()
        shutil.rmtree(folder)
        return table

    def curves(self, name):
        """Columns and points as a page gets them."""
        key = self.tool("dashboard", self.address, "--key", "view")[1].strip()
        status, text, _ = ask(self, "GET", f"/api/v1/jobs/{name}/rows", key=key)
        assert status == 200, text
        said = json.loads(text)
        return said["columns"], said["rows"]

    def ranks(self):
        """Pids of ranks, by node."""
        return {name: [pid for pid in node.marked.processes() if is_rank(pid)] for name, node in self.nodes.items()}

    def stop(self):
        self.end()


def is_rank(pid):
    with contextlib.suppress(OSError):
        return b"rank" in pathlib.Path(f"/proc/{pid}/comm").read_bytes()
    return False


def points(table):
    """A table's columns, and its cells as numbers; null where there is none."""
    def cell(text):
        try:
            return float(text) if text else None
        except ValueError:
            return text
    lines = [line.split(",") for line in table.splitlines()]
    return lines[0], [[cell(text) for text in line] for line in lines[1:]]


def tells():
    """A training says by itself how long it takes, where its files are, which nodes it is on, and why it has stopped."""
    with Ranks() as c:
        key = c.tool("dashboard", c.address, "--key", "view")[1].strip()

        def look(condition):
            status, text, _ = ask(c, "GET", "/api/v1/jobs/tells", key=key)
            now = json.loads(text)
            return status == 200 and condition(now) and now
        words = ["100000" if word == STEPS else word for word in ARGUMENTS]
        c.run(c.skein, "job", "submit", "--address", c.address, "--id", "tells", "--cpus", 1, "--working-dir", c.sent, "--", "./train", "--workers", 4, *words)
        now = c.head.wait_until(lambda: look(lambda j: "left_s" in j and j["step"] > 8), "a job with its time left", SECONDS)
        assert now["steps"] == 100000 and now["workers"] == 4 and now["left_s"] > 0 and "training" not in now, now
        assert now.get("tokens_per_s", 0) > 0, now
        assert [r["rank"] for r in now["ranks"]] == [0, 1, 2, 3] and {r["node"] for r in now["ranks"]} == {"n1", "n2"}, now
        assert now["run_folder"] == str(next(c.shared.glob("tells-*/gpt"))), now
        c.tool("job", "stop", "tells", SKEIN_ADDRESS=c.address)
        done = c.head.wait_until(lambda: look(lambda j: j["state"] == "STOPPED"), "a job that is stopped", SECONDS)
        assert done["training"] == "stopped" and done["stopped_by"] == "SIGTERM" and "left_s" not in done and len(done["ranks"]) == 4, done
        c.stop()


def same_numbers():
    """One, two and four ranks on two nodes: the table is that of one host, byte for byte."""
    with Ranks() as c:
        for workers in (1, 2, 4):
            job = c.start(f"gpt{workers}", workers)
            if workers == 4:
                # A node has three places, and the job's own process has one of them.
                job.wait_until(lambda: all(c.ranks().values()) and sum(map(len, c.ranks().values())) == 4, "ranks on both nodes", SECONDS)
            job.check(job.wait(SECONDS) == 0, "it failed")
            assert c.table(f"gpt{workers}") == c.local(workers), f"other numbers with {workers} ranks"
            assert c.info(f"gpt{workers}")["state"] == "SUCCEEDED"
            c.wait_until(lambda workers=workers: c.curves(f"gpt{workers}") == points(c.table(f"gpt{workers}")), "the points of its table in a page's answer")
        c.stop()


def losses():
    """A rank, a node and the head are killed on the way, each in a run of its own: the numbers stay what they are."""
    with Ranks(("n1", "n2", "n3"), state=True) as c:
        wanted = c.local(4)

        job = c.start("rank", 4)
        job.wait_until(lambda: c.rows("rank") >= 6, "some rows", SECONDS)
        os.kill(next(pid for pids in c.ranks().values() for pid in pids), signal.SIGKILL)
        job.check(job.wait(SECONDS) == 0, "it failed")
        # On a busy machine the end of its connection may be known long before that of its process.
        lost = re.compile("SIGKILL|is gone")
        job.check(lost.search(job.stderr) and "starting again" in job.stderr, "no word of it")
        assert c.table("rank") == wanted, "other numbers after the loss of a rank"
        # How often its ranks have started, and why the last time: in its files, its status and that of the cluster.
        result = json.loads(next(c.shared.glob("rank-*/gpt/result.json")).read_text())
        c.wait_until(lambda: c.info("rank").get("worlds") == 2, "a job that says how many worlds it had")
        why = c.info("rank")["last_change"]
        assert result["worlds"] == 2 and result["last_change"] == why and lost.search(why), (result, why)
        said = c.tool("job", "status", "rank", SKEIN_ADDRESS=c.address)[1]
        assert f"  worlds     2; why the last one began: {why}\n" in said, said

        # While it runs, the cluster's status says so.
        job = c.start("again", 4, "--steps", 100000)
        job.wait_until(lambda: c.rows("again") >= 6, "some rows", SECONDS)
        os.kill(next(pid for pids in c.ranks().values() for pid in pids), signal.SIGKILL)
        c.wait_until(lambda: "  job again: worlds 2; why the last one began: " in c.tool("status", c.address)[1], "a status with its worlds")
        now = next(j for j in json.loads(c.tool("status", c.address, "--json")[1])["jobs"] if j["job"] == "again")
        assert now["worlds"] == 2 and lost.search(now["last_change"]), now
        c.tool("job", "stop", "again", SKEIN_ADDRESS=c.address)
        assert job.wait(SECONDS) == 1, "it was not stopped"

        job = c.start("head", 4)
        job.wait_until(lambda: c.rows("head") >= 6, "some rows", SECONDS)
        c.head.process.kill()
        c.head.process.wait()
        c.start_head(c.address)
        job.check(job.wait(SECONDS) == 0, "it failed")
        job.check("starting again" not in job.stderr, "it was disturbed")
        assert c.table("head") == wanted, "other numbers after the loss of the head"

        job = c.start("node", 4)
        job.wait_until(lambda: c.rows("node") >= 6, "some rows", SECONDS)
        entry = c.info("node")["node"]
        gone = next(name for name, pids in c.ranks().items() if pids and name != entry)
        c.nodes[gone].process.kill()
        c.nodes[gone].process.wait()
        del c.nodes[gone]
        job.check(job.wait(SECONDS) == 0, "it failed")
        job.check("starting again" in job.stderr, "no word of it")
        assert c.table("node") == wanted, "other numbers after the loss of a node"
        c.stop()


def stops():
    """Stopped in order: the ranks save, leave and are gone; a resumed run goes on to the same numbers."""
    with Ranks() as c:
        job = c.start("first", 4, "--steps", 100000)
        job.wait_until(lambda: c.rows("first") >= 6, "some rows", SECONDS)
        code, out, err = c.tool("job", "stop", "first", SKEIN_ADDRESS=c.address)
        assert code == 0, (out, err)
        job.check(job.wait(SECONDS) == 1 and "STOPPED" in job.stderr, "it was not stopped")
        c.wait_until(lambda: not any(c.ranks().values()), "ranks that have ended")
        c.stop()


def not_there():
    """What no nodes could hold says so and waits."""
    with Ranks() as c:
        job = c.start("large", 9, "--batch", 18)
        job.wait_until(lambda: "waiting" in job.stderr and "cpu=1" in job.stderr, "why it waits", SECONDS)
        c.join("n3", "--resources", "cpu=6")
        job.check(job.wait(SECONDS) == 0, "it failed")
        c.stop()


def from_a_shell():
    """A training that nobody has submitted: SKEIN_ADDRESS is enough."""
    with Ranks() as c:
        run = c.run(c.sent / "train", "--workers", 4, *ARGUMENTS[2:], "--text", c.sent / "words.txt", SKEIN_ADDRESS=c.address, SKEIN_TOKEN_FILE=c.folder / "config/skein/token")
        run.wait_until(lambda: sum(map(len, c.ranks().values())) == 4, "four ranks on nodes", SECONDS)
        run.check(run.wait(SECONDS) == 0, "it failed")
        made = list(c.shared.glob("work-*/gpt/metrics.csv"))    # a folder of its own, by where it was started
        assert len(made) == 1 and made[0].read_text() == c.local(4), made
        c.stop()


def surroundings():
    """IPv6, a folder whose name has spaces, variables of the job in its ranks, and two trainings that each need most of the nodes."""
    with Ranks(listen="[::1]:0") as c:
        spaced = c.cwd / "my own folder"
        c.sent.rename(spaced)
        c.sent = spaced
        jobs = [c.start(name, 4, env=f"FROM={name}") for name in ("a", "b")]
        seen = set()

        def variables():
            for pids in c.ranks().values():
                for pid in pids:
                    with contextlib.suppress(OSError):
                        seen.update(v.decode() for v in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if v.startswith(b"FROM="))
            return len(seen) == 2
        c.head.wait_until(variables, "ranks of both jobs, one after the other, with their variables", SECONDS)
        for job in jobs:
            job.check(job.wait(SECONDS) == 0, "it failed")
        wanted = c.local(4)
        assert c.table("a") == wanted and c.table("b") == wanted, "other numbers"
        c.stop()


def three_hosts():
    """Network and host names of their own: a head with the job, and two nodes."""
    if not shutil.which("unshare"):
        print("        three hosts: not run, it needs the program unshare", flush=True)
        return
    in_three_namespaces("sj", "10.78.0", on_three_hosts)


def on_three_hosts(names):
    def at(i):
        return ["ip", "netns", "exec", names[i], "unshare", "--uts", "sh", "-c", f'hostname host{i} && exec "$@"', "sh"]
    with Ranks(()) as c:
        def start(i, *arguments, **how):
            return c.run(*at(i), *arguments, **how)
        head = start(0, c.skein, "head", "--listen", "10.78.0.1:7117", "--runs", c.shared, "--storage", c.folder / "files")
        head.wait_until(lambda: "skein join 10.78.0.1:7117" in head.stdout, "join line", SECONDS)
        nodes = [start(i, c.skein, "join", "10.78.0.1", "--name", f"n{i}", "--resources", f"cpu={4 - i}", "--storage", c.folder / f"node{i}") for i in (1, 2)]
        for node in nodes:
            node.wait_until(lambda node=node: "joined" in node.stdout, "word that it has joined", SECONDS)
        # From another host than those of the nodes, as from a laptop. A ring adds in the order of ranks, wherever they are; what is
        # chosen for several hosts adds within each of them first.
        ring = ["--communicator", "ring"]
        job = start(0, c.skein, "job", "submit", "--address", "10.78.0.1", "--id", "far", "--cpus", 1, "--working-dir", c.sent, "--", "./train", "--workers", 4, *ARGUMENTS, *ring)
        job.wait_until(lambda: all(any(is_rank(pid) for pid in node.marked.processes()) for node in nodes), "ranks on both nodes", SECONDS)
        job.check(job.wait(SECONDS) == 0, "it failed")
        assert c.table("far") == c.local(4, *ring), "other numbers"
        done = start(0, c.skein, "stop", "10.78.0.1")
        done.check(done.wait(SECONDS) == 0, "no stop")
        for run in (head, *nodes):
            run.check(run.wait(SECONDS) == 0, "no orderly end")
        c.stop()


CASES = [("same numbers", same_numbers), ("tells", tells), ("losses", losses), ("stops", stops), ("not there", not_there), ("from a shell", from_a_shell), ("surroundings", surroundings), ("three hosts", three_hosts)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

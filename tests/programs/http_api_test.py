#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a head of real processes tells over HTTP: how busy nodes are, how far jobs have come, lines by number.

    http_api_test.py [NAME]

By events: what the head says, asked again until it says so.
"""
# label: runtime
import json
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import Jobs, ask  # noqa: E402
from program import run_cases  # noqa: E402


class Api(Jobs):
    """A cluster, and its head by HTTP."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.view = self.tool("dashboard", self.address, "--key", "view")[1].strip()

    def get(self, path, status=200):
        got, text, _ = ask(self, "GET", path, key=self.view)
        assert got == status, f"{path}: {got}, not {status}: {text}"
        return json.loads(text)

    def get_when(self, path, condition, what):
        def look():
            status, text, _ = ask(self, "GET", path, key=self.view)
            now = json.loads(text)
            return status == 200 and condition(now) and now
        return self.wait_until(look, what)


def samples():
    """Nodes tell once a second what /proc says; the head gives it by node, of all, thinned, and from a moment on."""
    with Api([("n1", []), ("n/2 <b>", [])]) as c:
        told = c.get_when("/api/v1/nodes/n1/samples", lambda s: len(s["rows"]) >= 4, "four samples")
        assert told["every_s"] == 1 and told["columns"] == ["t", "cpu", "memory_used", "disk_used", "net_in", "net_out"], told
        total = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in pathlib.Path("/proc/meminfo").read_text().splitlines()}["MemTotal"]
        for t, cpu, memory, disk, net_in, net_out in told["rows"]:
            assert abs(t - time.time()) < 120 and 0 <= cpu <= 1 and 0 < memory < total and disk > 0 and net_in >= 0 and net_out >= 0, told
        assert [row[0] for row in told["rows"]] == sorted({row[0] for row in told["rows"]}), "a second twice, or out of order"
        load = next(n for n in c.get("/api/v1/nodes")["nodes"] if n["name"] == "n1")["load"]
        assert load["memory_total"] == total and load["disk_used"] <= load["disk_total"], load
        one = c.get("/api/v1/samples?node=n/2%20%3Cb%3E&points=1")
        assert one["node"] == "n/2 <b>" and len(one["rows"]) == 1 and one["every_s"] > 1, one
        after = told["rows"][1][0]
        assert all(row[0] > after for row in c.get(f"/api/v1/samples?node=n1&from={after}")["rows"])
        every = c.get("/api/v1/samples")
        assert set(every["nodes"]) == {"n1", "n/2 <b>"} and every["number"] >= 5, every
        newest = c.get_when(f"/api/v1/samples?after={every['number']}", lambda s: s["nodes"], "a sample after those")
        more = newest["number"] - every["number"]   # one where the answer came within a second
        assert more > 0 and all(1 <= len(rows) <= more for rows in newest["nodes"].values()), newest
        assert "no node" in c.get("/api/v1/nodes/none/samples", 404)["message"]
        assert "is no number" in c.get("/api/v1/samples?seconds=soon", 400)["message"]
        for path in ("/api/v1/functions", "/api/v1/actors", "/api/v1/logs"):
            told = c.get(path, 501)
            assert told["message"].startswith("not supported: ") and told["hint"], told
        c.nodes["n1"].process.kill()    # what it was stays
        c.wait_until(lambda: [n["state"] for n in c.get("/api/v1/nodes")["nodes"] if n["name"] == "n1"] in ([], ["missing"]), "a node that is gone")
        assert c.get("/api/v1/nodes/n1/samples")["rows"]
        del c.nodes["n1"]
        c.end()


TABLE = """mkdir -p runs/a
printf 'step,loss,lr,epoch,total_steps,world_size\\n' > runs/a/metrics.csv.new
mv runs/a/metrics.csv.new runs/a/metrics.csv
for i in 1 2 3 4 5; do echo "${i}0,0.$i,0.001,1,100,2" >> runs/a/metrics.csv; echo "line $i"; sleep 1; done
test $SKEIN_JOB_ATTEMPT = 2 || exit 7
while ! test -e "$1"; do sleep 0.1; done
"""


# Three rows, then it waits for a file.
THREE_ROWS = TABLE.replace("1 2 3 4 5", "1 2 3").replace("test $SKEIN_JOB_ATTEMPT = 2 || exit 7\n", "")


def progress():
    """A job has what the last row says, its speed, the time that is left, and the attempts before."""
    with Api([("n1", [])]) as c:
        go = c.folder / "go"
        folder = c.folder_of("table", TABLE)
        c.job("submit", "--id", "t", "--no-wait", "--retries", "1", "--working-dir", folder, "--", "./run.sh", go)
        first = c.get_when("/api/v1/jobs/t", lambda j: j.get("step", 0) >= 30, "the third row")
        assert first["attempt"] == 1 and first["restarts"] == 0 and len(first["attempts"]) == 1, first
        c.get_when("/api/v1/jobs/t/lines", lambda s: s["total"] == 10, "the lines of both attempts")
        last = c.get_when("/api/v1/jobs/t", lambda j: j["attempt"] == 2 and j.get("step") == 50 and "left_s" in j, "the last row of the second attempt")
        assert (last["loss"], last["learning_rate"], last["epoch"], last["steps"], last["workers"]) == (0.5, 0.001, 1, 100, 2), last
        assert 2 < last["steps_per_s"] < 50 and abs(last["left_s"] - 50 / last["steps_per_s"]) < 1e-6, last
        assert last["restarts"] == 1 and [a["attempt"] for a in last["attempts"]] == [1, 2], last
        assert last["attempts"][0]["exit_code"] == 7 and last["attempts"][0]["node"] == "n1" and last["attempts"][0]["ended"] <= last["attempts"][1]["started"], last
        rows = c.get("/api/v1/jobs/t/rows")
        assert rows["from"] == 0 and rows["total"] == len(rows["rows"]) == 5 and rows["columns"][0] == "step", rows
        new = c.get(f"/api/v1/jobs/t/rows?from=3&edition={rows['edition']}")
        assert new["from"] == 3 and [r[0] for r in new["rows"]] == [40, 50], new
        assert c.get(f"/api/v1/jobs/t/rows?from=3&edition={rows['edition'] + 1}")["from"] == 0, "rows of another table are not the next ones of this one"
        assert c.get(f"/api/v1/jobs/t/rows?from=99&edition={rows['edition']}")["from"] == 0
        lines = c.get("/api/v1/jobs/t/lines")
        assert lines["first"] == 1 and lines["next"] == 11 and lines["total"] == 10 and lines["lines"][9] == "line 5", lines
        assert c.get("/api/v1/jobs/t/lines?last=2")["lines"] == ["line 4", "line 5"]
        part = c.get("/api/v1/jobs/t/lines?from=4&bytes=20")
        assert part["first"] == 4 and part["lines"] == ["line 4", "line 5"] and part["next"] == 6, part
        assert c.get("/api/v1/jobs/t/lines?from=11")["lines"] == []
        go.touch()
        done = c.get_when("/api/v1/jobs/t", lambda j: j["state"] == "SUCCEEDED", "its end")
        assert "left_s" not in done and done["step"] == 50 and len(done["attempts"]) == 2, done
        c.job("submit", "--id", "plain", "--", "true")
        plain = c.get("/api/v1/jobs/plain")
        assert "step" not in plain and "left_s" not in plain and plain["restarts"] == 0, plain
        c.end()


def numbers_of(text):
    """Prometheus' text as {name and labels: number}; each once."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in found, f"{name} twice"
            found[name] = float(value)
    return found


def metrics():
    """What /metrics counts is what has happened; promtool takes it, whatever nodes are called."""
    with Api([("n1", []), ('n"2\\ \u00fc{a="b"}', [])]) as c:
        c.get_when("/api/v1/samples", lambda s: len(s["nodes"]) == 2, "samples of both")
        for word, code in (("true", 0), ("true", 0), ("false", 1)):
            c.job("submit", "--", word, code=code)
        c.job("submit", "--id", "waits", "--no-wait", "--cpus", "99", "--", "true")
        c.job("submit", "--id", "table", "--no-wait", "--working-dir", c.folder_of("table", THREE_ROWS), "--", "./run.sh", c.folder / "never")
        for _ in range(3):
            c.check_ends(c.program("010_hello_task"), "010_hello_task")
        for _ in range(7):
            assert ask(c, "GET", "/api/v1/none", key=c.view)[0] == 404
        for _ in range(2):
            assert ask(c, "GET", "/metrics")[0] == 401

        last = {'skein_train_step{job="table"}': 30, 'skein_calls_started_total': 6}    # what comes a moment after it has happened

        def look():
            text = ask(c, "GET", "/metrics", key=c.view)[1]
            now = numbers_of(text)
            seen.update((name, now.get(name)) for name in last)
            return seen == last and (text, now)
        seen = {}
        text, now = c.wait_until(look, lambda: f"numbers {last}, they are {seen}")
        for name, wanted in (
                ('skein_jobs{state="SUCCEEDED"}', 2), ('skein_jobs{state="FAILED"}', 1), ('skein_jobs{state="PENDING"}', 1), ('skein_jobs{state="RUNNING"}', 1),
                ('skein_cluster_nodes{state="ready"}', 2), ('skein_cluster_nodes{state="missing"}', 0), ('skein_links{peer="node"}', 2), ('skein_leases{state="waiting"}', 1),
                ('skein_leases{state="granted"}', 1), ('skein_calls_ended_total{result="ok"}', 6), ('skein_calls_ended_total{result="failed"}', 0),
                ('skein_tasks{state="pending"}', 0), ('skein_http_requests_total{code="404",process="head"}', 7), ('skein_http_requests_total{code="401",process="head"}', 2),
                ('skein_train_loss{job="table"}', 0.3), ('skein_train_world_size{job="table"}', 2), ('skein_job_restarts_total{job="table"}', 0),
                ('skein_resources{node="n1",name="cpu",state="total"}', 4), ("skein_metrics_dropped_total", 0)):
            assert now.get(name) == wanted, f"{name}: {now.get(name)}, not {wanted}\n{text}"
        other = 'n\\"2\\\\ \u00fc{a=\\"b\\"}'
        for node in ("n1", other):
            assert 0 <= now[f'skein_node_cpu_utilization_ratio{{node="{node}"}}'] <= 1 and now[f'skein_node_memory_total_bytes{{node="{node}"}}'] > 2**27, text
            assert now[f'skein_net_sent_messages_total{{node="{node}",process="agent"}}'] >= 3, text
        # What agents have sent, the head has received: their numbers are a second old at most.
        sent = sum(n for name, n in now.items() if name.startswith("skein_net_sent_bytes_total{node="))
        assert 0 < sent <= now['skein_net_received_bytes_total{process="head"}'], text
        if not shutil.which("promtool"):
            print("        promtool: not run, it is not installed (package prometheus)", flush=True)
        else:
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60)
            assert checked.returncode == 0 and not checked.stdout and not checked.stderr, checked
        for job in ("waits", "table"):
            c.job("stop", job)
        c.end()


if __name__ == "__main__":
    run_cases([("samples", samples), ("progress", progress), ("metrics", metrics)], sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a head of real processes tells over HTTP: how busy nodes are, how far jobs have come, lines by number.

    http_api_test.py [NAME]

By events: what the head says, asked again until it says so.
"""
# label: runtime
import json
import pathlib
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
        assert all(len(rows) == 1 for rows in newest["nodes"].values()) and newest["number"] > every["number"], newest
        assert "no node" in c.get("/api/v1/nodes/none/samples", 404)["message"]
        assert "is no number" in c.get("/api/v1/samples?seconds=soon", 400)["message"]
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


if __name__ == "__main__":
    run_cases([("samples", samples), ("progress", progress)], sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad days of a cluster of real processes: what its operators meet in the first week.

    bad_days_test.py [NAME]

By events: output lines, ends of processes, and what `skein status` and `skein job status` say.
"""
# label: runtime
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from http_api_test import Api  # noqa: E402
from jobs_test import ask  # noqa: E402
from program import run_cases  # noqa: E402

# ---- nodes that are silent, heads that come back -------------------------------------------------

# ---- nodes that cannot start anything, jobs that wait for each other -----------------------------

# ---- strangers, keys, files of the head ----------------------------------------------------------

# ---- what ranks compare, what the page tells -----------------------------------------------------

BROKEN = '''mkdir -p runs/a
printf 'step,"val_a,val_b",epoch,"a ""b""",loss,lr\\r\\n' > runs/a/metrics.csv.new
for i in $(seq 1 300); do l=0.5; test $i = 150 && l=inf; test $i -gt 290 && l=nan; printf "$i,7,1,-inf,$l,0.1\\r\\n" >> runs/a/metrics.csv.new; done
mv runs/a/metrics.csv.new runs/a/metrics.csv
while ! test -e "$1"; do sleep 0.1; done
'''


def broken_numbers():
    """A loss that is NaN is NaN everywhere; names with commas and quotes, and lines with Python's ends, move no column."""
    with Api([("n1", [])]) as c:
        go = c.folder / "go"
        c.job("submit", "--id", "b", "--no-wait", "--working-dir", c.folder_of("broken", BROKEN), "--", "./run.sh", go)
        now = c.get_when("/api/v1/jobs/b", lambda j: j.get("step") == 300, "its last row")
        assert (now["loss"], now["epoch"], now["learning_rate"]) == ("NaN", 1, 0.1), now
        assert now["run_folder"].endswith("/runs/a"), now
        rows = c.get("/api/v1/jobs/b/rows")
        assert rows["columns"] == ["step", "val_a,val_b", "epoch", 'a "b"', "loss", "lr"], rows["columns"]
        assert rows["rows"][0] == [1, 7, 1, "-Infinity", 0.5, 0.1] and rows["rows"][149][4] == "Infinity" and rows["rows"][299][4] == "NaN", rows["rows"]
        few = c.get("/api/v1/jobs/b/rows?points=3")
        assert few["rows"][-1] == [300, 7, 1, "-Infinity", "NaN", 0.1] and len(few["rows"]) <= 6, few
        status, text, _ = ask(c, "GET", "/metrics", key=c.view)
        assert status == 200 and 'skein_train_loss{job="b"} NaN\n' in text and 'skein_train_learning_rate{job="b"} 0.1\n' in text, [line for line in text.splitlines() if "train" in line]
        go.touch()
        done = c.get_when("/api/v1/jobs/b", lambda j: j["state"] == "SUCCEEDED", "its end")
        assert done["loss"] == "NaN", done
        c.end()


def page_counts():
    """What waits has begun nothing; jobs are counted, found and named with who sent them; nodes that are gone hold nothing."""
    with Api([("n1", []), ("n2", [])]) as c:
        c.job("submit", "--id", "waits", "--no-wait", "--cpus", "99", "--", "true")
        for i in range(7):
            c.job("submit", "--id", f"done{i}", "--", "sh", "-c", f"echo word{i}")
        now = c.get("/api/v1/jobs/waits")
        assert now["state"] == "PENDING" and now["attempt"] == 0 and now["attempts"] == [] and now["submitted"] > 0 and now["submitted_by"], now
        told = c.get("/api/v1/jobs?limit=2")
        assert len(told["jobs"]) == 2 and told["found"] == told["total"] == 8 and told["states"] == {"PENDING": 1, "SUCCEEDED": 7}, told
        found = c.get("/api/v1/jobs?find=WORD3")
        assert [j["id"] for j in found["jobs"]] == ["done3"] and found["found"] == 1 and found["total"] == 8 and found["states"] == told["states"], found
        plain = c.get("/api/v1/jobs/done0")
        assert plain["attempt"] == 1 and "run_folder" not in plain and "training" not in plain, plain
        c.nodes["n1"].process.kill()
        gone = c.wait_until(lambda: next((n for n in c.get("/api/v1/nodes")["nodes"] if n["name"] == "n1" and n["state"] == "missing"), None), "a node that is missing")
        assert "used" not in gone and "load" not in gone, gone
        status, text, _ = ask(c, "GET", "/metrics", key=c.view)
        assert status == 200 and 'skein_resources{node="n1"' not in text and 'skein_resources{node="n2"' in text, text
        del c.nodes["n1"]
        c.end()


def whole_log():
    """A log is one text that a browser saves, as it was printed; who may only look cannot stop a job, and is told so beforehand."""
    with Api([("n1", [])]) as c:
        c.job("submit", "--id", "log", "--", "sh", "-c", r"printf '\033[31mred\033[0m\n 10%%\r100%%\n'; seq 30000")
        status, text, headers = ask(c, "GET", "/api/v1/jobs/log/log", key=c.view)
        assert status == 200 and headers["Content-Type"].startswith("text/plain") and headers["Content-Disposition"] == 'attachment; filename="log.log"', headers
        assert text == "\033[31mred\033[0m\n 10%\r100%\n" + "".join(f"{i}\n" for i in range(1, 30001)), (len(text), text[:200])
        assert "there is no job" in c.get("/api/v1/jobs/none/log", 404)["message"]
        change = c.tool("dashboard", c.address, "--key", "submit")[1].strip()
        assert c.get("/api/v1/session") == {"may": "view"} and json.loads(ask(c, "GET", "/api/v1/session", key=change)[1]) == {"may": "change"}
        c.job("submit", "--id", "long", "--no-wait", "--", "sleep", "1000")
        c.until("long", "RUNNING")
        assert ask(c, "POST", "/api/jobs/long/stop", key=c.view)[0] == 403
        assert ask(c, "POST", "/api/jobs/long/stop", key=change)[0] == 200
        c.until("long", "STOPPED")
        c.end()


CASES = [
    # nodes that are silent, heads that come back

    # nodes that cannot start anything, jobs that wait for each other

    # strangers, keys, files of the head

    # what ranks compare, what the page tells
    ("numbers that are not finite, columns with commas", broken_numbers),
    ("the page counts what is there", page_counts),
    ("a whole log, and who may stop", whole_log),

]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

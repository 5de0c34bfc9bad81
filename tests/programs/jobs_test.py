#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are sent to a cluster of real processes: what they bring, print and leave, and how they end.

    jobs_test.py [NAME]

By events: output lines, ends of processes, and what `skein job status` says.
"""
# label: runtime
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import Cluster  # noqa: E402
from program import Marked, run_cases  # noqa: E402

SECONDS = 60.0


class Jobs(Cluster):
    """A cluster, and `skein job` at it."""

    def __init__(self, nodes=(("n1", []), ("n2", [])), **more):
        super().__init__([(name, ["--resources", "cpu=4", *words]) for name, words in nodes], **more)

    def job(self, *words, code=0, **env):
        got, out, err = self.tool("job", *words, SKEIN_ADDRESS=self.address, **env)
        assert got == code, f"skein job {words}: {got}, not {code}\n{out}\n{err}"
        return out, err

    def start(self, *words):
        return self.run(self.skein, "job", "submit", "--address", self.address, *words)

    def info(self, name):
        return json.loads(self.job("status", name, "--json")[0])

    def until(self, name, state):
        return self.wait_until(lambda: (now := self.info(name))["state"] == state and now, f"{name} that is {state}")

    def folder_of(self, job, text):
        """A folder with a script in it, beside the others."""
        made = self.cwd / job
        made.mkdir()
        script = made / "run.sh"
        script.write_text("#!/bin/sh\n" + text)
        script.chmod(0o755)
        return made

    def stop(self):
        self.end()    # jobs leave folders


def first():
    """A folder goes along, lines come back, the exit code is the job's, and the list says how it ended."""
    with Jobs() as c:
        folder = c.folder_of("first", 'echo "job $SKEIN_JOB at $(cat data/word.txt)"; ls -l run.sh | cut -c1-10; echo aside >&2; mkdir runs; touch runs/here\n')
        (folder / "data").mkdir()
        (folder / "data" / "word.txt").write_text("word\n")
        (folder / "link").symlink_to("data/word.txt")
        out, err = c.job("submit", "--id", "one", "--working-dir", folder, "--", "./run.sh")
        assert out == "job one at word\n-rwxr-xr-x\n", out
        assert "aside" in err and err[-1].startswith("skein job: one SUCCEEDED on n"), err
        assert c.info("one")["exit_code"] == 0 and c.info("one")["lines"] == 3
        assert re.search(r"one +SUCCEEDED", c.job("list")[0])
        assert c.job("logs", "one")[0] == out
        kept = list((c.folder / "home/.cache/skein").glob("node-*/jobs/one-*"))
        assert len(kept) == 1 and (kept[0] / "runs/here").exists() and (kept[0] / "link").is_symlink(), kept
        out, _ = c.job("submit", "--env", "A=1", "--env", "B=2 3", "--", "sh", "-c", "echo $A $B; echo --retries \"$@\"; pwd", "x", "--", "--no-wait")
        assert out.startswith("1 2 3\n--retries -- --no-wait\n"), out
        assert pathlib.Path(out.split()[-1]).parent.name == "jobs", "it did not run in a folder of its own"
        out, err = c.job("submit", "--no-wait", "--", "true")
        c.job("wait", out.strip())
        c.job("delete", "one")
        assert "there is no job" in c.job("status", "one", code=1)[1][0]
        c.stop()


def failures():
    """Exit code, signal and last lines of what failed; what cannot be started says why."""
    with Jobs() as c:
        err = c.job("submit", "--id", "three", "--", "sh", "-c", "echo last word >&2; exit 3", code=1)[1]
        assert "FAILED on n" in err[-1] and "exited with 3" in err[-1] and "last word" in err[-1], err
        assert c.info("three")["exit_code"] == 3 and c.info("three")["last_lines"] == ["last word"]
        err = c.job("submit", "--", "sh", "-c", "kill -SEGV $$", code=1)[1]
        assert "SIGSEGV" in err[-1], err
        err = c.job("submit", "--", "./nothing", code=1)[1]
        assert "there is no ./nothing in" in err[-1] and "--working-dir" in err[-1], err
        err = c.job("submit", "--", "no-such-command", code=1)[1]
        assert "no command no-such-command in the PATH" in err[-1], err
        plain = c.folder_of("plain", "true\n") / "run.sh"
        plain.chmod(0o644)
        err = c.job("submit", "--working-dir", plain.parent, "--", "./run.sh", code=1)[1]
        assert "is no executable file" in err[-1] and "chmod +x" in err[-1], err
        out, err = c.job("submit", "--retries", "1", "--", "sh", "-c", "echo attempt $SKEIN_JOB_ATTEMPT; test $SKEIN_JOB_ATTEMPT = 2")
        assert out == "attempt 1\nattempt 2\n" and any("RETRYING" in line for line in err), (out, err)
        err = c.job("submit", "--timeout", "1s", "--", "sleep", "1000", code=1)[1]
        assert "time limit of 1 s" in err[-1], err
        err = c.job("submit", "--cpus", "99", "--pending-timeout", "1s", "--", "true", code=1)[1]
        assert "no node could ever hold it" in err[-1] and "within 1 s" in err[-1], err
        c.stop()


def refusals():
    """One line each: what, where, why, what next."""
    with Jobs([("n1", [])]) as c:
        def check(words, *arguments, code=1, **env):
            err = c.job(*arguments, code=code, **env)[1]
            assert len(err) == 1 and re.search(words, err[0]), f"{arguments}: {err}"

        check("another token", "list", code=3, SKEIN_TOKEN="1" * 64)
        check("another token", "submit", "--", "true", code=3, SKEIN_TOKEN="1" * 64)
        check("no token", "list", XDG_CONFIG_HOME=c.folder / "nobody")
        check("no command is given", "submit", code=2)
        check("no command is given", "submit", "--working-dir", c.cwd, code=2)
        check("--working-dir: it is empty", "submit", "--working-dir", "", "--", "true", code=2)
        check("--workers.*put -- before the command", "submit", "./train", "--workers", "2", code=2)
        check("it cannot be set", "submit", "--env", "SKEIN_JOB=x", "--", "true")
        check("a time is wanted", "submit", "--timeout", "soon", "--", "true", code=2)
        check("no variable of an environment", "submit", "--env", "X", "--", "true")
        check("cannot be called", "submit", "--id", "../x", "--", "true")
        check("--resources", "submit", "--resources", "ssd=many", "--", "true", code=2)
        check("no such file or directory; name a folder", "submit", "--working-dir", c.cwd / "nothing", "--", "true")
        c.job("submit", "--id", "taken", "--", "true")
        check("a job taken already.*another id", "submit", "--id", "taken", "--", "true")
        check("no job .nobody.", "stop", "nobody")
        check("no job .nobody.", "logs", "nobody")
        odd = c.folder_of("odd", "true\n")
        os.mkfifo(odd / "pipe")
        check("pipe", "submit", "--working-dir", odd, "--", "./run.sh")
        (odd / "pipe").unlink()
        (odd / "out").symlink_to("../../elsewhere")
        check("out", "submit", "--working-dir", odd, "--", "./run.sh")
        c.run(c.skein, "job", "submit", "--address", c.address, "--id", "long", "--", "sleep", "1000")
        c.wait_until(lambda: "long" in c.job("list")[0] and c.info("long")["state"] == "RUNNING", "a job that runs")
        check("is RUNNING: it cannot be deleted", "delete", "long")
        c.job("stop", "long")
        c.until("long", "STOPPED")
        c.stop()


def leftovers():
    """What a job has started ends with it: another session, a process that ignores SIGTERM, the job's own shell."""
    with Jobs([("n1", [])]) as c:
        folder = c.folder_of("forks", "setsid sleep 1000 & (trap '' TERM; sleep 1000; sleep 1000) & echo begun; exec sleep 1000\n")
        watching = c.start("--id", "forks", "--working-dir", folder, "--", "./run.sh")
        watching.wait_until(lambda: "begun" in watching.stdout, "its first line", SECONDS)
        c.job("stop", "forks")
        watching.check(watching.wait(SECONDS) == 1 and "STOPPED" in watching.stderr, "it was not stopped")
        c.wait_until(lambda: not sleepers(c.nodes["n1"].marked), "processes that have ended")
        # Each is asked once: a second SIGTERM means "at once" to many.
        stubborn = "trap 'echo heard' TERM; echo begun; while :; do sleep 0.05; done"
        watching = c.start("--id", "once", "--", "sh", "-c", f"setsid sh -c \"{stubborn}\" & sh -c \"{stubborn}\" & {stubborn}")
        watching.wait_until(lambda: watching.stdout == "begun\n" * 3, "three first lines", SECONDS)
        c.job("stop", "once")
        watching.check(watching.wait(SECONDS) == 1 and watching.stdout == "begun\n" * 3 + "heard\n" * 3, "another number of signals")
        folder = c.folder_of("leaves", "setsid sleep 1000 & echo done\n")    # one that ends and leaves something behind
        c.job("submit", "--working-dir", folder, "--", "./run.sh")
        c.wait_until(lambda: not sleepers(c.nodes["n1"].marked), "processes that have ended")
        c.stop()


def sleepers(marked: Marked):
    found = []
    for pid in marked.processes():
        with contextlib.suppress(OSError):
            if b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kills():
    """Entry process, agent, follower: the job ends once, or goes on."""
    with Jobs() as c:
        watching = c.start("--id", "entry", "--", "sh", "-c", "echo pid $$; exec sleep 1000")
        pid = watching.wait_until(lambda: re.search(r"pid (\d+)", watching.stdout), "its pid", SECONDS).group(1)
        os.kill(int(pid), signal.SIGKILL)
        watching.check(watching.wait(SECONDS) == 1 and "SIGKILL" in watching.stderr, "no word of the signal")

        watching = c.start("--id", "moves", "--retries", "1", "--", "sh", "-c", "echo attempt $SKEIN_JOB_ATTEMPT; test $SKEIN_JOB_ATTEMPT = 2 || exec sleep 1000")
        watching.wait_until(lambda: "attempt 1" in watching.stdout, "its first attempt", SECONDS)
        node = c.info("moves")["node"]
        c.nodes[node].process.kill()
        watching.check(watching.wait(SECONDS) == 0, "it did not go on elsewhere")
        watching.check(watching.stdout == "attempt 1\nattempt 2\n", "other lines")
        assert c.info("moves")["node"] != node and c.info("moves")["attempt"] == 2
        c.nodes[node].process.wait()
        del c.nodes[node]

        watching = c.start("--id", "unwatched", "--", "sh", "-c", f"echo begun; while ! test -e {c.cwd}/go; do sleep 0.05; done; echo over")
        watching.wait_until(lambda: "begun" in watching.stdout, "its first line", SECONDS)
        watching.process.send_signal(signal.SIGINT)
        watching.check(watching.wait(SECONDS) == 130 and "goes on" in watching.stderr and "skein job stop unwatched" in watching.stderr, "no word of what goes on")
        follower = c.run(c.skein, "job", "logs", "unwatched", "--follow", "--address", c.address)
        follower.wait_until(lambda: "begun" in follower.stdout, "its first line", SECONDS)
        follower.process.kill()
        follower.process.wait()
        (c.cwd / "go").touch()
        assert c.until("unwatched", "SUCCEEDED")["exit_code"] == 0
        assert c.job("logs", "unwatched")[0] == "begun\nover\n"
        c.stop()


def another_head():
    """With --state the next head takes running jobs over, and knows those that have ended."""
    with Jobs(state=True) as c:
        c.job("submit", "--id", "before", "--", "sh", "-c", "exit 7", code=1)
        watching = c.start("--id", "stays", "--", "sh", "-c", f"echo 1; while ! test -e {c.cwd}/go; do sleep 0.05; done; echo 2; echo 3")
        watching.wait_until(lambda: watching.stdout == "1\n", "its first line", SECONDS)
        c.head.process.kill()
        c.head.process.wait()
        (c.cwd / "go").touch()
        c.start_head(c.address)
        watching.check(watching.wait(SECONDS) == 0, "the job, or its follower, did not go on")
        watching.check(watching.stdout == "1\n2\n3\n", "lines are missing or there twice")
        assert c.info("stays")["attempt"] == 1
        assert c.info("before")["exit_code"] == 7 and c.info("before")["state"] == "FAILED"
        c.job("delete", "before")    # its name does not return, under no head with that log
        for _ in range(2):
            assert "its name does not return" in c.job("submit", "--id", "before", "--", "true", code=1)[1][0]
            c.head.process.kill()
            c.head.process.wait()
            c.start_head(c.address)
        c.wait_until(lambda: len(c.status()["nodes"]) == 2, "nodes that are back: the others would wait for a head for ever")
        c.stop()


def grace():
    """A job has the time that was asked for between SIGTERM and the kill: when it is stopped, is late, or the cluster ends."""
    saves = "trap 'echo asked; sleep 3; echo saved; exit 0' TERM; echo on; while :; do sleep 0.05; done"
    with Jobs([("n1", [])]) as c:
        assert "600 s" in c.job("submit", "--grace", "11m", "--", "true", code=1)[1][-1]
        err = c.job("submit", "--timeout", "1s", "--grace", "30s", "--", "sh", "-c", saves, code=1)[1]
        assert sum("no --state" in line for line in err) == 1, err
        assert "time limit" in err[-1] and c.job("list", "--json")[0].count('"FAILED"') == 1, err
        watching = c.start("--id", "brief", "--", "sh", "-c", saves.replace("sleep 3", "sleep 300"))
        watching.wait_until(lambda: watching.stdout == "on\n", "its first line", SECONDS)
        c.job("stop", "brief")
        watching.check(watching.wait(SECONDS) == 1 and watching.stdout == "on\nasked\n", "it had more than two seconds")
        watching = c.start("--id", "patient", "--grace", "30s", "--", "sh", "-c", saves)
        watching.wait_until(lambda: watching.stdout == "on\n", "its first line", SECONDS)
        last = c.start("--id", "last", "--grace", "30s", "--", "sh", "-c", saves)
        last.wait_until(lambda: last.stdout == "on\n", "its first line", SECONDS)
        c.job("stop", "patient")
        watching.check(watching.wait(SECONDS) == 1 and watching.stdout == "on\nasked\nsaved\n", "it was killed too early")
        c.stop()
        last.check(last.stdout == "on\nasked\nsaved\n", "it was killed with the cluster")


def a_killed_agent():
    """What it leaves behind ends when an agent of that name comes; the job, which has failed, is not alone with that."""
    with Jobs([("n1", [])]) as c:
        watching = c.start("--id", "left", "--", "sh", "-c", "(trap '' TERM; sleep 1000) & setsid sleep 1000 & echo begun; exec sleep 1000")
        watching.wait_until(lambda: "begun" in watching.stdout, "its first line", SECONDS)
        c.nodes["n1"].process.kill()
        watching.check(watching.wait(SECONDS) == 1 and "FAILED" in watching.stderr, "it has not failed")
        killed = c.nodes["n1"].marked
        c.join("n1", "--resources", "cpu=4")
        c.joined("n1")
        c.wait_until(lambda: not sleepers(killed), "processes that have ended")
        c.stop()


def a_cluster_that_stops():
    """Jobs are asked to end, and say what they have to say."""
    with Jobs([("n1", [])]) as c:
        watching = c.start("--id", "polite", "--", "sh", "-c", "trap 'echo got it; sleep 0.3; echo bye; exit 0' TERM; echo on; while :; do sleep 0.05; done")
        watching.wait_until(lambda: "on" in watching.stdout, "its first line", SECONDS)
        c.stop()
        watching.check(watching.stdout == "on\ngot it\nbye\n" and "the cluster was stopped" in watching.stderr, "its last words are lost")


def nobody_reads():
    """An output that cannot be written ends the watching, not the job, and at once."""
    with Jobs([("n1", [])]) as c:
        for redirect in (">/dev/full", "2>/dev/full", ">&-", "2>&-"):
            begin = time.monotonic()
            run = c.run("/bin/sh", "-c", f"trap '' PIPE; exec {c.skein} job submit --address {c.address} -- seq 3 {redirect}")
            code = run.wait(SECONDS)
            run.check(code in (0, 1) and time.monotonic() - begin < 20, f"{redirect}: ended with {code}")
        c.stop()


def much_output():
    """Fast, and not text: what is seen and what is counted as left out are all of it."""
    with Jobs([("n1", [])]) as c:
        lines = 2_000_000
        out, err = c.job("submit", "--id", "fast", "--", "sh", "-c", f"seq {lines}")
        seen = [int(line) for line in out.split()]
        assert seen == sorted(set(seen)) and seen[-1] == lines, "lines are broken, twice, or in another order"
        left = 0
        for line in err:
            if found := re.search(r"lines? (\d+)(?: to (\d+))? (?:is|are) left out", line):
                left += int(found.group(2) or found.group(1)) - int(found.group(1)) + 1
        assert len(seen) + left == lines == c.info("fast")["lines"], (len(seen), left, c.info("fast"))
        out, _ = c.job("submit", "--id", "binary", "--", "sh", "-c", "head -c 100000 /dev/urandom; echo; echo end")
        assert out.endswith("end\n")
        assert c.info("binary")["state"] == "SUCCEEDED"
        c.stop()


def lines_on_nodes():
    """Lines that the head keeps no more come from the node's files: all, the last ones, those of one attempt; also under another head."""
    with Jobs([("n1", [])], state=True) as c:
        many = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo a$SKEIN_JOB_ATTEMPT.$i.$(printf %01000d 0); done"
        out, _ = c.job("submit", "--id", "many", "--retries", "1", "--", "sh", "-c", f"{many}; test $SKEIN_JOB_ATTEMPT = 2")

        def check(*words, wanted):
            got, err = c.job("logs", "many", *words)
            got = [line.rsplit(".", 1)[0] for line in got.splitlines()]
            assert got == wanted and err == [], (words, len(got), got[:3], got[-3:], err[:3])

        first, second = ([f"a{n}.{i}" for i in range(1, 3001)] for n in (1, 2))

        def check_all():
            check(wanted=first + second)
            check("--tail", "5", wanted=second[-5:])
            check("--attempt", "1", wanted=first)
            check("--attempt", "1", "--tail", "2", wanted=first[-2:])
            check("--attempt", "2", "--tail", "4000", wanted=second)
            assert "has had 2 attempts so far, not 3" in c.job("logs", "many", "--attempt", "3", code=1)[1][0]

        check_all()
        table = c.folder_of("table", 'mkdir -p runs/r; printf "step,loss\\n1,2.5\\n" > runs/r/metrics.csv; sleep 1.5\n')
        c.job("submit", "--id", "rows", "--working-dir", table, "--", "./run.sh")
        c.head.process.kill()
        c.head.wait(SECONDS)
        c.start_head(c.address)
        c.wait_until(lambda: c.node("n1") is not None, "the node")
        check_all()
        key = c.tool("dashboard", c.address, "--key", "view")[1].strip()
        assert json.loads(ask(c, "GET", "/api/v1/jobs/rows/rows", key=key)[1])["rows"] == [[1.0, 2.5]]
        c.nodes["n1"].process.send_signal(signal.SIGTERM)    # without it they are gone, and counted
        c.nodes.pop("n1").wait(SECONDS)
        c.wait_until(lambda: c.node("n1") is None or c.node("n1")["state"] != "alive", "a node that has gone")
        out, err = c.job("logs", "many")
        assert out == "" and "lines 1 to 6000 are left out" in err[0], (out[:100], err)
        c.stop()


def ask(c, method, path, body=None, key=None, **headers):
    host, port = c.address.rsplit(":", 1)
    link = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    if key:
        headers["Authorization"] = "Bearer " + key
    link.request(method, path, body, headers)
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    return answer.status, text, dict(answer.getheaders())


def over_http():
    """Ray's job API, the API of our own, and who may not."""
    with Jobs([("n1", [])]) as c:
        view = c.tool("dashboard", c.address, "--key", "view")[1].strip()
        change = c.tool("dashboard", c.address, "--key", "submit")[1].strip()
        status, text, _ = ask(c, "POST", "/api/jobs/", json.dumps({"entrypoint": "echo $A $SKEIN_JOB", "submission_id": "rest", "runtime_env": {"env_vars": {"A": "b"}}}), change)
        assert status == 200 and json.loads(text)["submission_id"] == "rest", (status, text)
        c.until("rest", "SUCCEEDED")
        status, text, _ = ask(c, "GET", "/api/jobs/rest", key=view)
        now = json.loads(text)
        assert status == 200 and now["status"] == "SUCCEEDED" and now["entrypoint"] == "echo $A $SKEIN_JOB" and now["driver_exit_code"] == 0, now
        assert json.loads(ask(c, "GET", "/api/jobs/rest/logs", key=view)[1]) == {"logs": "b rest\n"}
        assert [job["id"] for job in json.loads(ask(c, "GET", "/api/v1/jobs?limit=1", key=view)[1])["jobs"]] == ["rest"]
        assert json.loads(ask(c, "GET", "/api/v1/nodes", key=view)[1])["nodes"][0]["name"] == "n1"
        assert 'skein_jobs{state="SUCCEEDED"} 1\n' in ask(c, "GET", "/metrics", key=view)[1]
        for method, path, body, key, wanted in (
                ("GET", "/api/jobs/", None, None, 401), ("GET", "/api/jobs/", None, "1" * 64, 401), ("GET", "/metrics", None, None, 401),
                ("POST", "/api/jobs/", '{"entrypoint": "true"}', view, 403), ("DELETE", "/api/jobs/rest", None, view, 403),
                ("POST", "/api/jobs/rest/stop", None, view, 403), ("GET", "/api/jobs/nobody", None, view, 404),
                ("POST", "/api/jobs/", "rubbish", change, 400), ("POST", "/api/jobs/", '{"entrypoint": 1}', change, 400),
                ("POST", "/api/jobs/", '{"entrypoint": "true", "submission_id": 5}', change, 400), ("POST", "/api/jobs/", '{"entrypoint": ""}', change, 400),
                ("POST", "/api/jobs/", '{"entrypoint": "true", "more": 5}', change, 501), ("POST", "/api/jobs/", "[" * 100000, change, 400)):
            status, text, _ = ask(c, method, path, body, key)
            assert status == wanted and json.loads(text)["message"], (method, path, status, text)
        assert ask(c, "GET", "/api/jobs/", key=view, Host="evil.example")[0] in (400, 403, 421)
        assert ask(c, "POST", "/api/jobs/", "{}", change, Origin="http://evil.example")[0] == 403
        assert ask(c, "DELETE", "/api/jobs/rest", key=change)[0] == 200
        assert ask(c, "GET", "/api/jobs/rest", key=view)[0] == 404
        link = c.tool("dashboard", c.address)[1].strip()
        path = re.fullmatch(r"http://[^/]+(/login\?once=[0-9a-f]+)", link).group(1)
        status, _, headers = ask(c, "GET", path)
        cookie = headers["Set-Cookie"]
        assert status == 303 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert ask(c, "GET", path)[0] in (401, 403, 404, 410), "a link works twice"
        assert ask(c, "GET", "/api/v1/jobs", Cookie=cookie.split(";")[0])[0] == 200
        c.stop()


if __name__ == "__main__":
    CASES = [("first", first), ("failures", failures), ("refusals", refusals), ("leftovers", leftovers), ("kills", kills),
             ("another head", another_head), ("a killed agent", a_killed_agent), ("a cluster that stops", a_cluster_that_stops), ("nobody reads", nobody_reads), ("much output", much_output), ("grace", grace), ("lines on nodes", lines_on_nodes), ("over HTTP", over_http)]
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

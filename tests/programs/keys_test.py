#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys with rights at a cluster of real processes: what a job may ask for with its own, people with theirs, and what not.

    keys_test.py [NAME]

By events: output lines, ends of processes, and what `skein job status` says.
"""
# label: runtime
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from jobs_test import SECONDS, Jobs, ask  # noqa: E402
from program import find_program, run_cases  # noqa: E402


def in_job():
    """A job lists, follows and stops itself; `skein stop`, `skein drain` and other jobs are refused in one line each."""
    with Jobs([("n1", [])]) as c:
        c.job("submit", "--id", "other", "--no-wait", "--", "sleep", "1000")
        c.until("other", "RUNNING")
        script = c.folder_of("asks", f"""
try() {{ echo "$*:"; "{c.skein}" "$@" 2>&1; echo "= $?"; }}
try stop
try drain n1
try stop --space prod
try job list
try job logs other
try job stop other
try job submit -- true
try token --for view
try status --json
cp "$SKEIN_TOKEN_FILE" "{c.folder}/kept"; chmod 600 "{c.folder}/kept"
""")
        out, err = c.job("submit", "--id", "asks", "--working-dir", script, "--", "./run.sh")
        said = {}
        for part in re.split(r"(?<=\n)(?=\S[^\n]*:\n)", out):
            if ":\n" in part:
                name, rest = part.split(":\n", 1)
                said[name] = rest
        for name, words in (("stop", "ending the cluster is refused to the key of job asks"), ("drain n1", "draining a node is refused"),
                            ("stop --space prod", "ending a namespace that it has not begun"), ("job logs other", r"reading lines of a job \(other\) is refused"),
                            ("job stop other", r"stopping a job \(other\) is refused"), ("job submit -- true", "submitting a job is refused")):
            lines = said[name].splitlines()
            assert len(lines) == 2 and lines[1] in ("= 1", "= 3") and re.search(words, lines[0]), (name, lines)
            assert "which drives its own job's workers" in lines[0] and "outside of the job" in lines[0], lines
        assert re.search(r"^asks +RUNNING", said["job list"], re.M) and "other" not in said["job list"], said["job list"]
        assert "in " in said["token --for view"] and "is an attempt key" in said["token --for view"], said["token --for view"]
        status = json.loads(said["status --json"].rsplit("= ", 1)[0])
        assert [node["name"] for node in status["nodes"]] == ["n1"] and [job["job"] for job in status["jobs"]] == ["asks"], status
        assert c.info("other")["state"] == "RUNNING" and not c.node("n1")["draining"]

        # The attempt has ended: its file is gone, and a copy of it opens nothing.
        kept = c.folder / "kept"
        assert re.fullmatch(r"attempt\.[0-9a-f]+\.[0-9a-f]{64}", kept.read_text().strip())
        assert not [p for p in (c.folder / "home").rglob("keys/*") if "attempt" in p.name and p.read_text() == kept.read_text()]
        err = c.job("list", code=3, SKEIN_TOKEN_FILE=kept)[1]
        assert len(err) == 1 and "opens nothing any more: attempt 1 of job asks has ended" in err[0], err
        token = (c.folder / "config/skein/token").read_text().strip()
        holders = [p for p in (c.folder / "home").rglob("*") if p.is_file() and token in p.read_text(errors="replace")]
        assert not holders, f"the cluster's token lies in {holders}"
        c.job("stop", "other")
        c.stop()


def for_people():
    """A submit key submits, a view key looks; what else they ask for is refused. Over HTTP their own keys do the same."""
    with Jobs([("n1", [])]) as c:
        submit, view = (c.tool("token", "--for", kind)[1].strip() for kind in ("submit", "view"))
        assert submit.startswith("submit.0.") and view.startswith("view.0.")
        file = c.folder / "view-key"
        assert c.tool("token", "--for", "view", "--file", file)[0] == 0 and file.read_text().strip() == view and file.stat().st_mode & 0o77 == 0
        out, _ = c.job("submit", "--id", "one", "--", "echo", "hello", SKEIN_TOKEN=submit)
        assert out == "hello\n"
        assert "one" in c.job("list", SKEIN_TOKEN=view)[0] and c.job("logs", "one", SKEIN_TOKEN_FILE=file)[0] == "hello\n"
        assert c.tool("status", c.address, "--token-file", file)[0] == 0

        def refused(words, *arguments, code=3, **env):
            got, out, err = c.tool(*arguments, **env)
            assert got == code and len(err) == 1 and re.search(words, err[0]), (arguments, got, out, err)

        at = ("--address", c.address)
        refused("submitting a job is refused to a view key.*skein token --for submit", "job", "submit", *at, "--", "true", SKEIN_TOKEN=view)
        refused("stopping a job is refused to a view key", "job", "stop", *at, "one", SKEIN_TOKEN=view)
        for key in (view, submit):
            refused("ending the cluster is refused to a", "stop", c.address, SKEIN_TOKEN=key)
            refused("draining a node is refused to a", "drain", "n1", *at, SKEIN_TOKEN=key)
            refused("needs the cluster's token; in SKEIN_TOKEN is a", "token", "--for", "view", code=1, SKEIN_TOKEN=key)
            refused("needs the cluster's token", "head", "--listen", "127.0.0.1:0", code=1, SKEIN_TOKEN=key)
            refused("another token", "status", c.address, SKEIN_TOKEN=key[:-1] + ("0" if key[-1] != "0" else "1"))
            refused("hexadecimal digits", "status", c.address, code=1, SKEIN_TOKEN=key[:-1])
        refused("joining as a node is refused to a view key", "join", c.address, "--name", "n2", SKEIN_TOKEN=view)

        looks = c.tool("dashboard", c.address, "--key", "view", SKEIN_TOKEN=view)[1].strip()
        assert looks == c.tool("dashboard", c.address, "--key", "view")[1].strip()
        refused("a view key gives no submit key for HTTP", "dashboard", c.address, "--key", "submit", code=1, SKEIN_TOKEN=view)
        assert ask(c, "GET", "/api/jobs/", key=looks)[0] == 200
        assert ask(c, "POST", "/api/jobs/one/stop", key=looks)[0] == 403
        assert ask(c, "GET", "/api/jobs/", key=view)[0] == 401, "a peer's key was taken over HTTP"
        changes = c.tool("dashboard", c.address, "--key", "submit", SKEIN_TOKEN=submit)[1].strip()
        assert ask(c, "DELETE", "/api/jobs/one", key=changes)[0] == 200
        c.stop()


def programs_of_jobs():
    """Programs of a job have workers on both nodes and actors that outlive the job; others use these, and do not end them."""
    with Jobs([("n1", []), ("n2", [])]) as c:
        sums = find_program("skein_detached")

        def job(name, script, code=0):
            return c.job("submit", "--id", name, "--", "sh", "-c", script, code=code)

        out, _ = job("maker", f"{sums} make answer 40 && {sums} relay answer 1")
        assert out == "the sum is 40\nthe sum is 41\n", out
        out, err = job("other", f"{sums} add answer 1; {c.skein} stop --space prod", code=1)
        assert out == "the sum is 42\n" and any("ending a namespace that it has not begun (prod) is refused to the key of job other" in line for line in err), (out, err)
        # The space server has a key of its own: it goes on after its job, and takes in what comes from elsewhere.
        run = c.run(sums, "--address", c.address, "add", "answer", "1")
        run.check(run.wait(SECONDS) == 0 and run.stdout == "the sum is 43\n", "it was lost with its job")
        assert c.tool("stop", c.address, "--space", "prod")[0] == 0
        out, _ = job("owner", f"{sums} make answer 1 && {c.skein} stop --space prod")
        assert out.startswith("the sum is 1\nnamespace prod ends"), out
        c.stop()


def another_head():
    """With --state the next head knows the keys of the attempts that it takes over, and those that have ended."""
    with Jobs([("n1", [])], state=True) as c:
        watching = c.start("--id", "stays", "--", "sh", "-c", f"cp $SKEIN_TOKEN_FILE {c.folder}/kept; echo 1; while ! test -e {c.cwd}/go; do sleep 0.05; done; "
                                                              f"{c.skein} job list | wc -l; {c.skein} stop")
        watching.wait_until(lambda: watching.stdout == "1\n", "its first line", SECONDS)
        c.head.process.kill()
        c.head.process.wait()
        c.start_head(c.address)
        (c.cwd / "go").touch()
        watching.check(watching.wait(SECONDS) == 1, "skein stop was not refused")
        watching.check(watching.stdout == "1\n1\n", "the key was not known to the next head")
        watching.check("ending the cluster is refused to the key of job stays" in watching.stderr, "no word of the refusal")
        err = c.job("list", code=3, SKEIN_TOKEN_FILE=c.folder / "kept")[1]
        assert "attempt 1 of job stays has ended" in err[0], err
        c.head.process.kill()
        c.head.process.wait()
        c.start_head(c.address)
        err = c.job("list", code=3, SKEIN_TOKEN_FILE=c.folder / "kept")[1]
        assert "attempt 1 of job stays has ended" in err[0], err
        c.wait_until(lambda: len(c.status()["nodes"]) == 1, "a node that is back")
        c.stop()


if __name__ == "__main__":
    run_cases([("in a job", in_job), ("for people", for_people), ("programs of jobs", programs_of_jobs), ("another head", another_head)], sys.argv[1] if len(sys.argv) > 1 else None)

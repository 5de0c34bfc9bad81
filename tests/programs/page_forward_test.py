#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`skein dashboard` of a head elsewhere: its page at a port of this host, as near as on the head's own host.

    page_forward_test.py [NAME]
"""
# label: runtime
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import SECONDS, Cluster  # noqa: E402
from program import free_port, run_cases, skip  # noqa: E402


class Page(Cluster):
    def show(self, *words):
        """The command that forwards, and the port and the path of its link."""
        run = self.run(self.skein, "dashboard", self.address, "--forward", *words)
        found = run.wait_until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)(/login\S+)\n", run.stdout), "a link", SECONDS)
        return run, int(found.group(1)), found.group(2)

    def key(self):
        code, out, err = self.tool("dashboard", "--key", "submit")
        assert code == 0, err
        return {"Authorization": f"Bearer {out.strip()}"}


def ask(port, path, method="GET", body=None, headers=None, read=True):
    talk = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    talk.request(method, path, body, headers or {})
    answer = talk.getresponse()
    if not read:
        return talk, answer
    text = answer.read().decode()
    talk.close()
    return answer.status, text, dict(answer.getheaders())


def end(run):
    run.process.send_signal(signal.SIGINT)
    run.check(run.wait(SECONDS) == 0, "it did not end in order")


def shown():
    """The link lets in, keys look and change, events come as they happen, and Ctrl-C ends it."""
    with Page() as c:
        run, port, path = c.show()
        status, _, headers = ask(port, path)
        if status == 501:
            skip("this skein was built without Boost")
        assert status in (302, 303) and "Set-Cookie" in headers, (status, headers)
        cookie = {"Cookie": headers["Set-Cookie"].split(";")[0]}
        assert json.loads(ask(port, "/api/v1/session", headers=cookie)[1])["may"] == "change"
        assert ask(port, "/api/v1/nodes")[0] == 401
        key = c.key()
        talk, events = ask(port, "/api/v1/events", headers=key, read=False)
        assert events.readline().startswith(b"retry")
        status, text, _ = ask(port, "/api/jobs/", "POST", json.dumps({"entrypoint": "true", "submission_id": "sent"}), key)
        assert status == 200 and json.loads(text)["job_id"] == "sent", text
        while not events.readline().startswith(b"data"):
            pass
        large = ask(port, "/dashboard.js")
        assert large[0] in (200, 404) and (large[0] == 404 or len(large[1]) > 10_000)
        many = [ask(port, "/healthz", read=False) for _ in range(8)]    # at once
        assert all(answer.read() == b"ok\n" for _, answer in many)
        for other, _ in many:
            other.close()
        end(run)
        assert events.read(1 << 20) is not None    # it ends
        talk.close()
        c.end()


def ports():
    """A port that is named is taken; one that somebody has is no error."""
    with Page() as c:
        port = free_port()
        run, got, _ = c.show("--port", port)
        assert got == port
        another, other, _ = c.show("--port", port)
        assert other != port and ask(other, "/healthz")[1] == "ok\n"
        end(another)
        end(run)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))    # nobody has it any more
        c.end()


def heads():
    """A head that goes ends connections; the next one is found by the next of them. Who has another token gets nothing."""
    with Page(state=True) as c:
        run, port, _ = c.show()
        assert ask(port, "/healthz")[1] == "ok\n"
        os.kill(c.head.process.pid, signal.SIGKILL)
        c.head.wait(SECONDS)
        try:
            ask(port, "/healthz")
            raise AssertionError("somebody has answered")
        except (OSError, http.client.HTTPException):
            pass
        c.start_head(c.address)
        assert ask(port, "/healthz")[1] == "ok\n"
        end(run)
        wrong = c.folder / "wrong"
        code, _, _ = c.tool("token", "--file", wrong)
        code, out, err = c.tool("dashboard", c.address, "--forward", "--token-file", wrong)
        assert code == 3 and not out and "token" in err[0], (code, out, err)
        c.end()


CASES = [("shown", shown), ("ports", ports), ("heads", heads)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

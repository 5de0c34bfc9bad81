#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes: the program skein as head and nodes, examples as drivers; all of them die now and then.

    cluster_test.py [NAME]

By events: output lines, ends of processes, and what `skein status` says. Nothing may be left behind, and no file
outside of the test's own folder.
"""
# label: runtime
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, environment, find_program, free_port, run_cases, skip  # noqa: E402

EXAMPLES = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "examples"
SECONDS = 60.0    # for anything here; all of it takes a fraction of a second on a machine that is not busy
REFUSED = 3


class Cluster:
    """A head and nodes with a home of their own; the token is made by the head."""

    def __init__(self, nodes=(), listen="127.0.0.1:0", state=False, head=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="skein-cluster-"))
        self.env = {"HOME": self.folder / "home", "XDG_CONFIG_HOME": self.folder / "config", "TMPDIR": self.folder / "tmp"}
        for path in self.env.values():
            path.mkdir()
        self.cwd = self.folder / "work"
        self.cwd.mkdir()
        self.runs, self.nodes = [], {}
        self.state = self.folder / "state"
        self.head_arguments = [*(["--state", self.state] if state else []), *head]
        self.skein = find_program("skein")
        try:
            self.start_head(listen)
            for name, arguments in nodes:
                self.join(name, *arguments)
            for name, _ in nodes:
                self.joined(name)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for run in self.runs:
            run.__exit__()
        shutil.rmtree(self.folder)

    def run(self, *arguments, **env):
        run = Run(arguments, cwd=self.cwd, **{**self.env, **env})
        self.runs.append(run)
        return run

    def start_head(self, listen):
        self.head = self.run(self.skein, "head", "--listen", listen, *self.head_arguments)
        self.address = self.head.wait_until(lambda: re.search(r"skein join (\S+)\n", self.head.stdout), "join line", SECONDS).group(1)

    def join(self, name, *arguments, **env):
        self.nodes[name] = self.run(self.skein, "join", self.address, "--name", name, *arguments, **env)

    def joined(self, name):
        node = self.nodes[name]
        node.wait_until(lambda: f"skein node {name}: joined" in node.stdout, "word that it has joined", SECONDS)

    def tool(self, *arguments, **env):
        """Exit code, output, and the lines on standard error."""
        with Run([self.skein, *arguments], cwd=self.cwd, **{**self.env, **env}) as run:
            code = run.wait(SECONDS)
            run.check(not run.marked.processes(), "it left processes behind")
            return code, run.stdout, run.stderr.splitlines()

    def status(self):
        code, out, err = self.tool("status", self.address, "--json")
        return json.loads(out) if code == 0 else {"nodes": [], "jobs": [], "error": err}

    def node(self, name):
        return next((n for n in self.status()["nodes"] if n["name"] == name), None)

    def wait_until(self, condition, what):
        return self.head.wait_until(condition, what, SECONDS)

    def program(self, name, *arguments):
        return self.run(find_program(name), "--address", self.address, *arguments)

    def check_ends(self, run, example):
        """It ends well, and prints what its example says."""
        run.check(run.wait(SECONDS) == 0, "it failed")
        wanted = (EXAMPLES / f"{example}.expected").read_text()
        run.check(run.stdout == wanted, f"it printed something else than\n{wanted}")

    def end(self):
        """Ends all of it; no process is left."""
        code, out, err = self.tool("stop", self.address)
        self.head.check(code == 0 and "ends" in out, f"skein stop: {code} {out} {err}")
        for run in [self.head, *self.nodes.values()]:
            code = run.wait(SECONDS)
            run.check(code == 0, f"it ended with {code}")
        for run in self.runs:
            run.check_nothing_left()

    def stop(self):
        """The same, and no file is left but the token."""
        self.end()
        there = sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file() and p.parent != self.state)
        assert there == ["config/skein/token"], f"other files than the token: {there}"


def listens_at(pid):
    """The IPv4 and IPv6 addresses at which a process listens, as (text of the host, port)."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)):
                inodes.add(found.group(1))
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] != "0A" or words[9] not in inodes:
                continue
            host, port = words[1].split(":")
            raw = b"".join(bytes.fromhex(host[i:i + 8])[::-1] for i in range(0, len(host), 8))
            found.append((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def workers_of(run):
    """Process ids of the workers that an agent has started, by what `ps` shows."""
    found = []
    for pid in run.children():
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(w.startswith(b"--skein-worker=") for w in words):
            found.append(pid)
    return found


def examples_run():
    """Tasks and actors print what they print on one host; status shows nodes, as text and as JSON."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=2,ssd=1", "--labels", "zone=x", "disk=fast"])]) as c:
        for example in ("050_many_tasks", "020_actor_counter", "025_plain_main", "010_hello_task"):
            c.check_ends(c.program(example), example)
        s = c.status()
        assert [n["name"] for n in s["nodes"]] == ["a", "b"], s
        assert s["nodes"][1]["resources"]["cpu"] == 2 and s["nodes"][1]["resources"]["ssd"] == 1, s
        assert s["nodes"][1]["labels"] == ["zone=x", "disk=fast"] and s["nodes"][0]["pid"] == c.nodes["a"].process.pid, s
        c.wait_until(lambda: not c.status()["jobs"], "jobs that are gone")
        code, out, _ = c.tool("status", SKEIN_ADDRESS=c.address)
        assert code == 0 and "2 nodes, 0 jobs" in out and "cpu 0/2" in out and "zone=x" in out, out
        few = c.program("050_many_tasks", "--workers", 1)
        c.check_ends(few, "050_many_tasks")
        for _ in range(20):    # an orderly end is one each time, and no driver is waited for
            c.check_ends(c.program("010_hello_task"), "010_hello_task")
        c.head.check("is away" not in c.head.stderr, "a driver that has left is waited for")
        by_variable = c.run(find_program("010_hello_task"), SKEIN_ADDRESS=c.address)
        c.check_ends(by_variable, "010_hello_task")
        c.stop()


def refusals():
    """One line that says what to do, and exit code 3: another token, a taken name, no cluster at that address."""
    with Cluster([("a", [])]) as c:
        def check(wanted, code, words, *arguments, **env):
            got, out, err = c.tool(*arguments, **env)
            assert got == code and len(err) == 1 and re.search(words, err[0]), f"{arguments}: {wanted}, but {got}\n{out}\n{err}"

        other = {"SKEIN_TOKEN": "1" * 64}
        check("another token", REFUSED, "another token", "status", c.address, **other)
        check("another token", REFUSED, "another token", "stop", c.address, **other)
        check("another token", REFUSED, "another token", "join", c.address, **other)
        check("a taken name", REFUSED, "node a is in the cluster already.*--name", "join", c.address, "--name", "a")
        check("a wrong resource", 2, "--resources", "join", c.address, "--resources", "cpu=lots")
        check("no token", 1, "no token.*skein head", "status", c.address, XDG_CONFIG_HOME=c.folder / "nobody")
        check("no such node", REFUSED, 'no node is called "zebra"; there are: "a"; skein status', "drain", "zebra", "--address", c.address)
        check("no subcommand", 2, "there is no command start; the commands are head, join, status, dashboard, drain, stop, token, run, scale, job, checkpoint, report; see skein --help", "start")
        check("nothing", 2, "no command is given; the commands are head, ")
        check("an option of no command", 2, '--jsn; of options there are: .*"--json", "--jobs"', "status", "--jsn")
        check("an option before the command", 2, '--versoin; of options there are: "--help", "--version"', "--versoin", "status")
        check("an empty name", 2, "--name.*without --name it is the host's", "join", c.address, "--name", "")
        check("a name with a control character", REFUSED, "has a control character; choose another --name", "join", c.address, "--name", "a\x1b[2J")
        check("a label twice", REFUSED, "label 2 of the node, zone=a, is there twice", "join", c.address, "--labels", "zone=a", "zone=a")
        check("a URL", 2, "http://host:1: a head has no URL.*e.g.", "status", "http://host:1")
        check("no host", 2, "no host before the port", "status", ":7")
        check("no token file", 1, "--token-file: open token file /nope.*copy the token file", "status", c.address, "--token-file", "/nope")
        for pair in (["--head", "--join", c.address], ["--join", c.address, "--address", c.address]):
            both = c.run(find_program("010_hello_task"), *pair)
            both.check(both.wait(SECONDS) == 2 and re.search(r"--join.*: a process is one of them", both.stderr), "it is two things")
        stranger = c.run(find_program("010_hello_task"), "--address", c.address, **other)
        stranger.check(stranger.wait(SECONDS) == 1, "it ran")
        stranger.check("another token" in stranger.stderr and len(stranger.stderr.splitlines()) == 1, "no word of the token")
        assert [n["name"] for n in c.status()["nodes"]] == ["a"], c.status()
        gone = c.address
        c.stop()
        check("nobody listens", REFUSED, "no cluster at.*refused.*", "status", gone)


def secret_of_the_cluster():
    """A node that has the token in its environment does not hand it to the workers of programs, which connect where
    nobody else can."""
    with Cluster() as c:
        token = (c.folder / "config" / "skein" / "token").read_text().strip()
        c.join("a", "--resources", "cpu=1", SKEIN_TOKEN=token)
        c.joined("a")
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        c.wait_until(lambda: (c.cwd / "begun").exists(), "a call")
        hosts = {host for host, _ in listens_at(driver.process.pid)}
        assert hosts == {"127.0.0.1"}, f"the head listens on this host alone, the driver on {hosts}"
        (worker,) = workers_of(c.nodes["a"])
        seen = pathlib.Path(f"/proc/{worker}/environ").read_bytes()
        assert b"HOME=" in seen and b"SKEIN_TOKEN=" not in seen and token.encode() not in seen, "the worker has the token"
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        (c.cwd / "begun").unlink()
        (c.cwd / "go").unlink()
        c.stop()


def killed_agent():
    """The workers of an agent that is killed die with it; what they computed is computed on the other node."""
    with Cluster([("a", ["--resources", "cpu=2"]), ("b", ["--resources", "cpu=2"])]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 4, "calls on all workers")
        node = c.nodes.pop("a")
        node.check(len(workers_of(node)) == 2 and len(workers_of(c.nodes["b"])) == 2, "not two workers on each node")
        node.process.kill()
        node.wait(SECONDS)
        c.wait_until(lambda: not node.marked.processes(), "workers that died with their agent")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0, "it failed")
        driver.check(driver.stdout == "the sum is 4950\n", "another sum")
        c.wait_until(lambda: c.node("a") is None, "a status without the node")
        said = [line for line in driver.stderr.splitlines() if " was lost" in line]
        driver.check(len(said) == 1 and "a node was lost with its workers node=a workers=2" in said[0], "not one line on the node")
        begun.unlink()
        (c.cwd / "go").unlink()
        c.join("a")    # under its name again
        c.joined("a")
        c.stop()


def killed_head():
    """Programs go on without a head; when it is started again at its address nodes and drivers come back."""
    # A port that nobody else gets meanwhile.
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])], f"127.0.0.1:{free_port()}") as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both workers")
        workers = {w for name in "ab" for w in workers_of(c.nodes[name])}
        c.head.process.kill()
        c.head.wait(SECONDS)
        c.start_head(c.address)
        c.wait_until(lambda: len(c.status()["nodes"]) == 2, "both nodes")
        job = c.wait_until(lambda: [j for j in c.status()["jobs"] if j["connected"] and j["workers"] == 2], "the driver with its workers")
        assert job[0]["pid"] == driver.process.pid and job[0]["name"] == "skein_many_waits", job
        assert {w for name in "ab" for w in workers_of(c.nodes[name])} == workers, "other workers than before"
        driver.check("no node" not in driver.stderr, "a warning that is none")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0, "it failed")
        driver.check(driver.stdout == "the sum is 4950\n", "another sum")
        c.wait_until(lambda: not c.status()["jobs"], "a job that is gone")
        begun.unlink()
        (c.cwd / "go").unlink()
        c.check_ends(c.program("050_many_tasks"), "050_many_tasks")    # and new programs run
        c.stop()


def killed_head_for_good():
    """A program ends right, without a head from its middle to its end; the nodes end with a signal."""
    with Cluster([("a", ["--resources", "cpu=1"])]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        c.wait_until(lambda: (c.cwd / "begun").exists(), "a call")
        c.head.process.kill()
        c.head.wait(SECONDS)
        driver.wait_until(lambda: "the head is away; workers go on" in driver.stderr, "word of the head", SECONDS)
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0, "it failed")
        driver.check(driver.stdout == "the sum is 4950\n", "another sum")
        node = c.nodes["a"]
        node.process.send_signal(signal.SIGTERM)
        node.check(node.wait(SECONDS) == 0, "no orderly end")
        for run in c.runs:
            run.check_nothing_left()


class Stranger:
    """Answers at a port as somebody who is no head, or not this one."""

    def __init__(self, port, answer):
        self.answer, self.asked, self.door = answer, 0, socket.create_server(("127.0.0.1", port))
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            try:
                s, _ = self.door.accept()
            except OSError:
                return
            with s, contextlib.suppress(OSError):
                s.settimeout(1)
                self.asked += 1
                while said := s.recv(4096):
                    s.sendall(self.answer(said))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        self.thread.join()


def stranger_at_the_port():
    """While the head is away another cluster's head, an HTTP server and an echo answer at its port: nodes and programs
    say so once each, and wait for theirs."""
    port = free_port()
    with Cluster([("a", ["--resources", "cpu=1"])], f"127.0.0.1:{port}") as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        c.wait_until(lambda: (c.cwd / "begun").exists(), "a call")
        c.head.process.kill()
        c.head.wait(SECONDS)
        both = [driver, c.nodes["a"]]

        def said_by_both(words):
            for run in both:
                run.wait_until(lambda: words in run.stderr, f"word of {words}", SECONDS)

        said_by_both("the head is away; workers go on")
        other = c.run(c.skein, "head", "--listen", f"127.0.0.1:{port}", SKEIN_TOKEN="2" * 64)
        said_by_both("the peer has another token")
        other.process.kill()
        other.wait(SECONDS)
        for answer, words in ((lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "it looks like HTTP"), (lambda said: said, None)):
            with Stranger(port, answer) as stranger:
                if words is not None:
                    said_by_both("something else answers at the head's address")
                c.nodes["a"].wait_until(lambda: stranger.asked > 6, "several attempts", SECONDS)
        for run in both:
            lines = [line for line in run.stderr.splitlines() if "something else answers at the head's address" in line]
            run.check(1 <= len(lines) <= 3 and run.process.poll() is None, "it has ended, or says it again and again")
        c.start_head(c.address)
        said_by_both(" after=")    # the head is back
        c.wait_until(lambda: [j for j in c.status()["jobs"] if j["connected"] and j["workers"] == 1], "the driver with its worker")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        (c.cwd / "begun").unlink()
        (c.cwd / "go").unlink()
        c.stop()


class Silence:
    """So many connections that say nothing, opened again when they are dropped."""

    def __init__(self, address, count):
        host, port = address.rsplit(":", 1)
        self.to, self.over, self.dropped = (host, int(port)), threading.Event(), 0
        self.waiting = selectors.DefaultSelector()
        for _ in range(count):
            self.open()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def open(self):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(self.to)
        self.waiting.register(s, selectors.EVENT_READ)

    def run(self):
        while not self.over.is_set():
            for key, _ in self.waiting.select(0.1):
                with contextlib.suppress(BlockingIOError):
                    with contextlib.suppress(ConnectionError):
                        if key.fileobj.recv(1):
                            continue
                    self.waiting.unregister(key.fileobj)
                    key.fileobj.close()
                    self.dropped += 1
                    self.open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for key in list(self.waiting.get_map().values()):
            key.fileobj.close()
        self.waiting.close()


def silent_connections():
    """A head with few descriptors and many times as many silent connections: tools, nodes and programs get in, and calls
    go on."""
    # An instrumented head takes them more slowly, and a tool waits 5 s: fewer, but still many more than have a place.
    few, many = 256, 400 if "ASAN_OPTIONS" in os.environ else 1500
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2 * many), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Cluster() as c:
        c.stop()
        c.runs.clear()
        c.head = c.run("bash", "-c", f'ulimit -n {few}; exec "$@"', "-", c.skein, "head", "--listen", "127.0.0.1:0")
        c.address = c.head.wait_until(lambda: re.search(r"skein join (\S+)\n", c.head.stdout), "join line", SECONDS).group(1)
        with Silence(c.address, many) as pest:
            c.wait_until(lambda: pest.dropped > many, "connections that were dropped")
            took = []
            for _ in range(5):
                begin = time.monotonic()
                code, out, err = c.tool("status", c.address)
                took.append(time.monotonic() - begin)
                assert code == 0, (code, out, err)
            c.join("a", "--resources", "cpu=1")
            c.joined("a")
            c.check_ends(c.program("010_hello_task"), "010_hello_task")
            held = len(list(pathlib.Path(f"/proc/{c.head.process.pid}/fd").iterdir()))
            assert held < few / 2, f"the head has {held} descriptors in use"
            print(f"status beside {many} silent connections: {max(took):.2f} s at most, {pest.dropped} were dropped")
        c.stop()


def tokens():
    """A token file that is named and not there is made by a head, and by skein token; never written over."""
    with Cluster() as c:
        file = c.cwd / "made" / "token"
        head = c.run(c.skein, "head", "--listen", "127.0.0.1:0", SKEIN_TOKEN_FILE=file)
        address = head.wait_until(lambda: re.search(r"skein join (\S+)\n", head.stdout), "join line", SECONDS).group(1)
        head.check(f"token:          {file}\n" in head.stdout and file.stat().st_mode & 0o777 == 0o600, "another token file")
        code, out, err = c.tool("stop", address, SKEIN_TOKEN_FILE=file)
        assert code == 0 and head.wait(SECONDS) == 0, (code, out, err)
        other = c.cwd / "other"
        code, out, err = c.tool("token", "--file", other)
        assert code == 0 and str(other) in out and other.stat().st_mode & 0o777 == 0o600, (code, out, err)
        text = other.read_text()
        code, out, err = c.tool("token", "--file", other)
        assert code == 1 and "is there already; " in err[0] and other.read_text() == text, (code, out, err)
        code, out, err = c.tool("token")
        assert code == 0 and re.fullmatch("[0-9a-f]{64}\n", out) and out != text, (code, out, err)
        shutil.rmtree(file.parent)
        other.unlink()
        c.stop()


def rude_names():
    """A program's name reaches no terminal as a command."""
    with Cluster([("a", ["--resources", "cpu=1"])]) as c:
        rude = c.cwd / "ev\x1b[31mil\nfake-node"
        # By a process of its own: one that another case forks meanwhile would keep our file open for writing, and nobody could run it.
        subprocess.run(["cp", find_program("skein_many_waits"), rude], check=True)
        driver = c.run(rude, "--address", c.address, c.cwd / "begun", c.cwd / "go")
        c.wait_until(lambda: (c.cwd / "begun").exists(), "a call")

        def looks_right():
            code, out, err = c.tool("status", c.address, "--jobs")
            assert code == 0 and not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out), out
            assert [line for line in out.splitlines() if "ev\\x1b[31mil\\nfake-node" in line], out
            code, out, err = c.tool("status", c.address, "--jobs", "--json")
            told = json.loads(out)
            assert "ev\x1b[31mil\nfake-node" in [j["name"] for j in told["jobs"] + told["past_jobs"]], out
        looks_right()
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0, "it failed")
        c.wait_until(lambda: not c.status()["jobs"], "a job that is gone")
        looks_right()
        for run in (c.head, c.nodes["a"], driver):
            run.check("\x1b" not in run.stderr + run.stdout.replace("the sum", ""), "an escape sequence")
        for path in (rude, c.cwd / "begun", c.cwd / "go"):
            path.unlink()
        c.stop()


def remembered():
    """Head and node are killed: the next head knows that the node is missing, and that it is drained, when it comes back."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])], f"127.0.0.1:{free_port()}", state=True) as c:
        c.check_ends(c.program("010_hello_task"), "010_hello_task")
        c.wait_until(lambda: not c.status()["jobs"], "a job that is gone")
        code, out, err = c.tool("drain", "a", "--address", c.address)
        assert code == 0 and not err, (code, out, err)
        for run in (c.head, c.nodes["a"]):
            run.process.kill()
            run.wait(SECONDS)
        c.start_head(c.address)
        c.wait_until(lambda: c.node("b") is not None, "the other node")
        now = c.status()
        assert [(n["name"], n["draining"], n["left"]) for n in now["missing"]] == [("a", True, False)], now
        assert now["generation"] == 2 and now["state"] == str(c.state) and now["trouble"] == "", now
        code, out, err = c.tool("status", c.address, "--jobs")
        assert code == 0 and re.search(r"\ba .*draining, missing since 20\d\d-", out) and re.search(r"010_hello_task .*left", out), (out, err)
        code, out, err = c.tool("drain", "a", "--forget", "--address", c.address)
        assert code == 0 and out == "node a is forgotten\n" and not c.status()["missing"], (code, out, err)
        code, out, err = c.tool("drain", "b", "--address", c.address)
        assert code == 0, (code, out, err)
        for run in (c.head, c.nodes["b"]):
            run.process.kill()
            run.wait(SECONDS)
        c.start_head(c.address)
        c.join("b", "--resources", "cpu=1")
        c.joined("b")
        assert c.node("b")["draining"] and not c.status()["missing"], c.status()
        del c.nodes["a"]
        c.stop()


def state_folders():
    """What may be wrong with a state folder: a head says what, where and what to do; one with a damaged file starts."""
    with Cluster([("a", ["--resources", "cpu=1"])], f"127.0.0.1:{free_port()}", state=True) as c:
        def refused(*arguments, **env):
            run = c.run(c.skein, "head", "--listen", "127.0.0.1:0", *arguments, **env)
            run.check(run.wait(SECONDS) == 1, "it did not fail")
            return run.stderr.splitlines()[-1]
        said = refused("--state", c.state)
        assert "is in use by another head, pid " in said and "end that one first" in said, said
        for on in (True, False) * 4:
            code, out, err = c.tool("drain", "a", "--address", c.address, *([] if on else ["--undo"]))
            assert code == 0 and not any("will not know" in line for line in err), (code, out, err)
        c.head.process.kill()
        c.head.wait(SECONDS)
        said = refused("--state", c.state, SKEIN_TOKEN="ab" * 32)
        assert "another token" in said and "name another folder with --state" in said, said
        said = refused("--state", c.cwd.parent / "config" / "skein" / "token")
        assert "cannot be used" in said and "--state" in said, said
        log = c.state / "head.log"
        content = bytearray(log.read_bytes())
        content[len(content) // 2] ^= 1
        log.write_bytes(content)
        c.start_head(c.address)
        c.head.check("head.log is damaged" in c.head.stderr and "offset" in c.head.stderr, "no word of the damage")
        assert (c.state / "head.log.broken").read_bytes() == content
        c.wait_until(lambda: c.node("a") is not None, "the node")
        assert c.status()["generation"] == 1, c.status()
        c.stop()


def drained():
    """A drained node gets no workers of programs that come later, until the drain is taken back."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])]) as c:
        code, out, err = c.tool("drain", "a", "--address", c.address)
        assert code == 0 and "a takes no new workers" in out and not err, (code, out, err)
        assert c.node("a")["draining"] and not c.node("b")["draining"], c.status()
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        c.wait_until(lambda: (c.cwd / "begun").exists(), "a call")
        assert c.node("b")["workers"] == 1 and c.node("a")["workers"] == 0, c.status()
        assert not workers_of(c.nodes["a"]), "a worker on the drained node"
        code, out, err = c.tool("drain", "b", "--address", c.address)
        assert code == 0 and "b takes no new workers; 1 still runs" in out, (code, out, err)
        assert "it was the last one" in err[0] and "skein drain b --undo takes this back" in err[0], (code, out, err)
        code, out, err = c.tool("drain", "b", "--undo", "--address", c.address)
        assert code == 0 and not err, (code, out, err)
        code, out, err = c.tool("drain", "a", "--undo", "--address", c.address)
        assert code == 0, (code, out, err)
        c.wait_until(lambda: (c.node("a") or {}).get("workers") == 1, "a worker on the node that takes them again")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        (c.cwd / "begun").unlink()
        (c.cwd / "go").unlink()
        c.stop()


def stopped():
    """skein stop in the middle of a program: it fails with the reason, and all processes end."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both workers")
        code, out, err = c.tool("stop", c.address)
        assert code == 0, (code, out, err)
        driver.check(driver.wait(SECONDS) == 1, "it did not fail")
        driver.check("the cluster was stopped" in driver.stderr.splitlines()[-1], "no word of the stop")
        for run in [c.head, *c.nodes.values()]:
            run.check(run.wait(SECONDS) == 0, "no orderly end")
        for run in c.runs:
            run.check_nothing_left()


def interrupted():
    """Ctrl-C at a head ends the cluster as skein stop does; at a driver, the driver alone; at a node, this node."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both workers")
        driver.process.send_signal(signal.SIGINT)
        driver.check(driver.wait(SECONDS) == 130, "it was not stopped by the signal")
        c.wait_until(lambda: not c.status()["jobs"] and not any(workers_of(n) for n in c.nodes.values()), "workers that end with their driver")
        c.nodes["b"].process.send_signal(signal.SIGTERM)
        c.nodes["b"].check(c.nodes["b"].wait(SECONDS) == 0, "no orderly end")
        c.wait_until(lambda: c.node("b") is None, "a node that has left")
        c.head.process.send_signal(signal.SIGINT)
        for run in [c.head, c.nodes["a"]]:
            run.check(run.wait(SECONDS) == 0, "no orderly end")
        for run in c.runs:
            run.check_nothing_left()


def closed_terminals():
    """A node and a head whose terminal is closed leave as by SIGTERM; under nohup they stay."""
    with Cluster([("a", ["--resources", "cpu=1"])]) as c:
        stays = c.nodes["b"] = c.run("nohup", c.skein, "join", c.address, "--name", "b")
        c.joined("b")
        for _ in range(2):
            stays.process.send_signal(signal.SIGHUP)
        leaves = c.nodes["a"]
        leaves.process.send_signal(signal.SIGHUP)
        leaves.check(leaves.wait(SECONDS) == 0, "no orderly end")
        c.wait_until(lambda: c.node("a") is None, "a node that has left")
        c.head.check([n["name"] for n in c.status()["nodes"]] == ["b"], "a node that is missing, or gone")
        c.head.process.send_signal(signal.SIGHUP)
        for run in [c.head, stays]:
            run.check(run.wait(SECONDS) == 0, "no orderly end")


def stopped_agent():
    """A node whose agent stands still for longer than it may is lost with its workers, and comes back without them."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])], head=["--lost-after", "5s"]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both workers")
        node = c.nodes["a"]
        worker = workers_of(node)
        node.process.send_signal(signal.SIGSTOP)
        c.wait_until(lambda: c.node("a") is None, "a node that is lost")
        node.process.send_signal(signal.SIGCONT)
        c.wait_until(lambda: c.node("a") is not None and c.node("a")["workers"] == 1, "a node that is back, with a worker")
        node.wait_until(lambda: workers_of(node) and not set(workers_of(node)) & set(worker), "another worker than before", SECONDS)
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        begun.unlink()
        (c.cwd / "go").unlink()
        c.stop()


def killed_worker():
    """A worker that is killed is replaced on a node with room, and its calls run again."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both workers")
        (worker,) = workers_of(c.nodes["a"])
        os.kill(worker, signal.SIGKILL)
        c.wait_until(lambda: workers_of(c.nodes["a"]) not in ([], [worker]) and begun.read_text().count("\n") >= 3, "another worker that computes")
        said = [line for line in driver.stderr.splitlines() if "a worker was lost" in line]
        driver.check(len(said) == 1 and f"node=a pid={worker} why=" in said[0] and "SIGKILL" in said[0], "not one line on the worker")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        begun.unlink()
        (c.cwd / "go").unlink()
        # A call that may not run again fails, and says how and where its worker ended: the driver hears it from the node.
        driver = c.program("skein_many_waits", begun, c.cwd / "go", 0)
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both workers")
        (worker,) = workers_of(c.nodes["b"])
        os.kill(worker, signal.SIGKILL)
        driver.check(driver.wait(SECONDS) == 1, "it did not fail")
        driver.check("killed by signal 9 (SIGKILL) on b" in driver.stderr, "no word of how and where it ended")
        begun.unlink()
        c.stop()


def silent_worker():
    """A worker that is stopped is ended by its agent, and its calls run again."""
    with Cluster([("a", ["--resources", "cpu=1"])]) as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 1, "a call")
        (worker,) = workers_of(c.nodes["a"])
        os.kill(worker, signal.SIGSTOP)
        c.wait_until(lambda: workers_of(c.nodes["a"]) not in ([], [worker]) and begun.read_text().count("\n") >= 2, "another worker that computes")
        said = [line for line in driver.stderr.splitlines() if "a worker was lost" in line]
        driver.check(len(said) == 1 and "it is stopped (SIGSTOP)" in said[0], "not one line on the worker, with why")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        begun.unlink()
        (c.cwd / "go").unlink()
        c.stop()


def one_after_the_other():
    """A program that comes while another one holds all cpus waits, says why, and runs when that has ended; one that
    comes before there are nodes waits for the first."""
    with Cluster() as c:
        driver = c.program("skein_many_waits", c.cwd / "begun", c.cwd / "go")
        driver.wait_until(lambda: "no node takes workers" in driver.stderr, "word that there are no nodes", SECONDS)
        c.join("a", "--resources", "cpu=1")
        begun = c.cwd / "begun"
        c.wait_until(lambda: begun.exists() and c.node("a")["workers"] == 1, "a call on the first node")
        second = c.program("050_many_tasks")
        waits = c.wait_until(lambda: [j for j in c.status()["jobs"] if j["name"] == "050_many_tasks" and j["waiting"]], "a job that waits")
        assert waits[0]["workers"] == 0 and waits[0]["why"], waits
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        c.check_ends(second, "050_many_tasks")
        begun.unlink()
        (c.cwd / "go").unlink()
        c.stop()


def same_program():
    """A program is head and node itself, with --head and --join; it needs no program skein."""
    with Cluster() as c:
        app = find_program("010_hello_task")
        head = c.run(app, "--head", "--listen", "127.0.0.1:0")
        address = head.wait_until(lambda: re.search(r"skein join (\S+)\n", head.stdout), "join line", SECONDS).group(1)
        node = c.run(app, "--join", address)
        node.wait_until(lambda: "joined" in node.stdout, "word that it has joined", SECONDS)
        c.check_ends(c.run(app, "--address", address), "010_hello_task")
        code, _, err = c.tool("stop", address)
        assert code == 0, err
        for run in (head, node):
            run.check(run.wait(SECONDS) == 0, "no orderly end")
        c.stop()


def output_of_workers():
    """What workers print is their driver's: whole lines with a prefix, each on the output or the error it was printed on;
    also what one said before it aborted. Their agents print none of it."""
    with Cluster([("a", ["--resources", "cpu=1"]), ("b", ["--resources", "cpu=1"])]) as c:
        run = c.program("skein_output", "lines")
        run.check(run.wait(SECONDS) == 0, "it failed")
        said = [re.fullmatch(r"\(worker-\d+, [ab]\) task (\d+)", line) for line in run.stdout.splitlines()]
        run.check(all(said) and sorted(int(m.group(1)) for m in said) == list(range(20)), "other lines")
        said = [re.fullmatch(r"\(worker-\d+, [ab]\) error of task (\d+)", line) for line in run.stderr.splitlines()]
        run.check(all(said) and sorted(int(m.group(1)) for m in said) == list(range(20)), "other lines on standard error")
        run = c.program("skein_output", "lines", "--no-prefix-output")
        run.check(run.wait(SECONDS) == 0 and sorted(run.stdout.splitlines()) == sorted(f"task {i}" for i in range(20)), "a prefix")
        run = c.program("skein_output", "abort")
        run.check(run.wait(SECONDS) == 1, "it did not fail")
        run.check(re.fullmatch(r"\(worker-\d+, [ab]\) before\n", run.stdout), "not what it said on its output")
        lines = run.stderr.splitlines()
        run.check(re.fullmatch(r"\(worker-\d+, [ab]\) what went wrong", lines[0]), "not what it said last")
        run.check("SIGABRT" in lines[-1] and "had printed: what went wrong" in lines[-1], "no word of it in the error")
        for node in c.nodes.values():
            node.check("task" not in node.stdout + node.stderr and "wrong" not in node.stdout + node.stderr, "it was printed here")
        there = c.cwd / "there"
        there.mkdir()
        run = c.program("skein_output", "where", there)
        run.check(run.wait(SECONDS) == 0 and run.stdout == f"two words in {there}\n", "another environment")
        run = c.program("skein_output", "where", there / "not")
        run.check(run.wait(SECONDS) == 1, "it did not fail")
        run.check(f"{there}/not" in run.stderr.splitlines()[-1] and ".on" in run.stderr.splitlines()[-1], "no word of the folder")
        c.stop()


def full_pipe():
    """A driver whose output nobody reads stops no worker: what is too much is left out, and counted."""
    with Cluster([("a", ["--resources", "cpu=1"])]) as c:
        done = c.cwd / "done"
        run = subprocess.Popen([find_program("skein_output"), "flood", done, "--address", c.address], cwd=c.cwd, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**c.env))
        c.wait_until(lambda: done.exists() and done.read_text() == "200000\n", "a worker that has printed it all")
        out, err = run.communicate(timeout=SECONDS)
        assert run.returncode == 0, (run.returncode, err)
        lines = out.decode().splitlines()
        numbers = [re.fullmatch(r"\(worker-\d+, a\) (\d+) x{100}", line) for line in lines]
        assert all(numbers) and lines[0].endswith("x") and out.endswith(b"x\n"), "a line that is not whole"
        numbers = [int(m.group(1)) for m in numbers]
        assert numbers == sorted(set(numbers)), "not in order"
        left_out = [int(n.replace(",", "")) for n in re.findall(r"\.\.\. ([\d,]+) lines of worker-\d+ were left out", err.decode())]
        assert left_out and len(numbers) + sum(left_out) == 200_000, (len(numbers), left_out)
        done.unlink()
        c.stop()


def ip(command):
    return subprocess.run(["ip", *command.split()], capture_output=True, check=False).returncode == 0


def in_three_namespaces(prefix, net, body):
    """Runs body(names of three network namespaces): the first is the switch, too, a bridge with the address NET.1; the others have NET.2
    and NET.3. Says so where this machine has no such thing."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("        three hosts: not run, it needs root and the program ip (package iproute2)", flush=True)
        return
    names = [f"{prefix}{os.getpid()}{i}" for i in range(3)]
    made = [f"netns add {name}" for name in names] + [f"-n {name} link set lo up" for name in names]
    made += [f"-n {names[0]} link add br0 type bridge", f"-n {names[0]} addr add {net}.1/24 dev br0", f"-n {names[0]} link set br0 up"]
    for i in (1, 2):
        made += [f"-n {names[0]} link add p{i} type veth peer name eth0 netns {names[i]}", f"-n {names[0]} link set p{i} master br0 up",
                 f"-n {names[i]} addr add {net}.{i + 1}/24 dev eth0", f"-n {names[i]} link set eth0 up"]
    try:
        for command in made:
            if not ip(command):
                print(f"        three hosts: not run, this machine cannot do: ip {command}", flush=True)
                return
        body(names)
    finally:
        for name in names:
            ip(f"netns del {name}")


def namespaces():
    """Three hosts, as far as one machine can be three: network namespaces, joined by a bridge."""
    in_three_namespaces("sk", "10.77.0", three_hosts)


def counts_right(run, begun, go):
    go.write_text("")
    run.check(run.wait(SECONDS) == 0 and run.stdout == "the sum is 4950\n", "another sum")
    run.check("was lost" not in run.stderr, "a worker was lost")
    begun.unlink()
    go.unlink()


def broken_connections(c, names, start, workers):
    """All connections of the driver's host are killed, again and again; then two hosts cannot reach each other, and both reach the
    head: nothing is lost."""
    begun, go = c.cwd / "begun", c.cwd / "go"
    def driver_with_calls():
        run = start(2, find_program("skein_many_waits"), begun, go, 0, "--address", "10.77.0.1", SKEIN_LOG_LEVEL="debug")
        run.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both hosts", SECONDS)
        return run, workers()
    driver, before = driver_with_calls()
    subprocess.run(["ip", "netns", "exec", names[2], "ss", "-K", "-t", "state", "established"], capture_output=True, check=True)
    # The link to the head comes back at once, those to the workers when their functions have returned.
    driver.wait_until(lambda: driver.stderr.count("link broken") >= 3 and "link resumed" in driver.stderr, "links that break", SECONDS)
    driver.check(workers() == before, "other workers than before")
    counts_right(driver, begun, go)
    driver.check(driver.stderr.count("link resumed") >= 3, "no links that resume")
    driver, before = driver_with_calls()
    for i in (1, 2):
        ip(f"-n {names[0]} link set p{i} type bridge_slave isolated on")
    driver.wait_until(lambda: "its host has confirmed nothing" in driver.stderr, "word of a host that does not answer", SECONDS)
    for i in (1, 2):
        ip(f"-n {names[0]} link set p{i} type bridge_slave isolated off")
    driver.check(workers() == before, "other workers than before")
    counts_right(driver, begun, go)
    driver.check("link resumed" in driver.stderr, "no link that resumes")


def three_hosts(names):
    def at(i):
        return ["ip", "netns", "exec", names[i]]
    with Cluster() as c:    # its own head is not used
        def start(i, *arguments, **how):
            return c.run(*at(i), *arguments, **how)
        head = start(0, c.skein, "head", "--listen", "10.77.0.1:7117")
        head.wait_until(lambda: "skein join 10.77.0.1:7117" in head.stdout, "join line", SECONDS)
        nodes = [start(i, c.skein, "join", "10.77.0.1", "--name", f"n{i}", "--resources", "cpu=1") for i in (0, 1)]
        for node in nodes:
            node.wait_until(lambda node=node: "joined" in node.stdout, "word that it has joined", SECONDS)
        c.check_ends(start(2, find_program("050_many_tasks"), "--address", "10.77.0.1"), "050_many_tasks")
        broken_connections(c, names, start, lambda: [workers_of(node) for node in nodes])
        driver = start(2, find_program("skein_many_waits"), c.cwd / "begun", c.cwd / "go", "--address", "10.77.0.1")
        begun = c.cwd / "begun"
        driver.wait_until(lambda: begun.exists() and begun.read_text().count("\n") >= 2, "calls on both hosts", SECONDS)
        for node in nodes:
            node.check(len(workers_of(node)) == 1, "no worker there")
        # The second host is cut off: its node is lost, and the driver cuts its worker off, once the head says so.
        ip(f"-n {names[1]} link set eth0 down")
        (c.cwd / "go").write_text("")
        driver.check(driver.wait(SECONDS) == 0 and driver.stdout == "the sum is 4950\n", "another sum")
        ip(f"-n {names[1]} link set eth0 up")
        begun.unlink()
        (c.cwd / "go").unlink()
        done = start(0, c.skein, "stop", "10.77.0.1")
        done.check(done.wait(SECONDS) == 0, "no stop")
        head.check(head.wait(SECONDS) == 0, "no orderly end")
        nodes[0].check(nodes[0].wait(SECONDS) == 0, "no orderly end")
        nodes[1].process.send_signal(signal.SIGTERM)
        nodes[1].wait(SECONDS)
        c.stop()


def other_build(program, copy):
    """The same program with another build id."""
    raw = bytearray(pathlib.Path(program).read_bytes())
    note = raw.find(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
    assert note > 0, "no build id"
    raw[note + 16] ^= 0xFF
    # By a process of its own: a program that another case starts meanwhile would inherit the open file ("text file busy").
    subprocess.run(["sh", "-c", 'cat > "$1" && chmod 755 "$1"', "sh", copy], input=raw, check=True)
    return copy


def detached():
    """An actor that outlives its program is found by others; its space server dies, the head dies, and the cluster stops."""
    with Cluster([("n1", ["--resources", "cpu=2"]), ("n2", ["--resources", "cpu=2"])], f"127.0.0.1:{free_port()}") as c:
        def program(*arguments, of=find_program("skein_detached")):
            return c.run(of, "--address", c.address, *arguments)

        def says(text, *arguments):
            run = program(*arguments)
            run.check(run.wait(SECONDS) == 0 and run.stdout == text, f"not {text!r}")
        says("the sum is 40\n", "make", "answer", "40")
        says("the sum is 42\n", "add", "answer", "2")
        twice = program("make", "answer", "1")
        twice.check(twice.wait(SECONDS) == 1 and "already" in twice.stderr, "a second actor of one name")
        space_server = next(j for j in c.status()["jobs"] if j["space"] == "prod")
        assert space_server["workers"] == 1 and space_server["connected"], space_server
        code, out, _ = c.tool("status", c.address)
        assert code == 0 and "skein_detached (space server of prod)" in out, out
        # Another build may not: it may have other functions.
        other = program("add", "answer", "1", of=other_build(find_program("skein_detached"), c.folder / "other"))
        other.check(other.wait(SECONDS) == 1 and "another program or build" in other.stderr, "no reason")
        (c.folder / "other").unlink()
        # Killed with a call under way: the call says how, and the next program finds a new, empty namespace.
        begun = c.cwd / "begun"
        waiting = program("wait", "answer", begun)
        waiting.wait_until(begun.exists, "a call", SECONDS)
        os.kill(space_server["pid"], signal.SIGKILL)
        waiting.check(waiting.wait(SECONDS) == 1, "no failure")
        for part in ("space server of namespace", "SIGKILL"):
            waiting.check(part in waiting.stderr, f"it does not say {part!r}")
        gone = program("add", "answer", "1")
        gone.check(gone.wait(SECONDS) == 1 and "no actor named" in gone.stderr, "an actor without its space server")
        c.wait_until(lambda: re.search(r"skein_detached \(space server of prod\) .*\blost\b", c.tool("status", c.address, "--jobs")[1]), "the past space server")
        assert [j["space"] for j in json.loads(c.tool("status", c.address, "--jobs", "--json")[1])["past_jobs"]].count("prod") == 1
        says("the sum is 7\n", "make", "lasting", "7", "-1")
        # The head comes back, and knows the space server.
        c.head.process.kill()
        c.head.wait(SECONDS)
        c.start_head(c.address)
        says("the sum is 9\n", "add", "lasting", "2")
        # A killed worker: its actor is made again, with its state, though no program holds it.
        before = [pid for n in c.nodes.values() for pid in workers_of(n)]
        assert len(before) == 1, before
        os.kill(before[0], signal.SIGKILL)
        c.wait_until(lambda: (now := [p for n in c.nodes.values() for p in workers_of(n)]) and now != before, "another worker")
        says("the sum is 10\n", "add", "lasting", "1")
        killer = program("kill", "lasting")
        killer.check(killer.wait(SECONDS) == 0, "no end")
        c.wait_until(lambda: not [p for n in c.nodes.values() for p in workers_of(n)], "the end of its worker")
        says("the sum is 5\n", "make", "other", "5")
        begun.unlink()
        c.stop()


def workers_as_space_clients():
    """Workers make, find and call detached actors, and pass handles; a namespace ends by request."""
    with Cluster([("n1", ["--resources", "cpu=2"]), ("n2", ["--resources", "cpu=2"])], f"127.0.0.1:{free_port()}") as c:
        def program(*arguments):
            return c.run(find_program("skein_detached"), "--address", c.address, *arguments)

        def says(text, *arguments):
            run = program(*arguments)
            run.check(run.wait(SECONDS) == 0 and run.stdout == text, f"not {text!r}")
        for empty in (["--space", ""], ["--space="]):    # that is not the whole cluster
            code, _, err = c.tool("stop", c.address, *empty)
            assert code == 2, (code, err)
        code, _, err = c.tool("stop", c.address, "--space", "prod")
        assert code == 3 and 'no namespace "prod"' in " ".join(err), (code, err)
        says("the sum is 4\n", "relay", "answer", "4")
        says("the sum is 7\n", "relay", "answer", "3")
        says("the sum is 9\n", "add", "answer", "2")
        # A worker has a call under way: it hears why the namespace has ended, and passes that on.
        begun = c.cwd / "begun"
        holding = program("hold", "answer", begun)
        holding.wait_until(begun.exists, "a call", SECONDS)
        code, out, err = c.tool("stop", c.address, "--space", "prod")
        assert code == 0 and out == "namespace prod ends: its space server and 1 worker are told\n", (code, out, err)
        holding.check(holding.wait(SECONDS) == 1, "no failure")
        for part in ('space server of namespace "prod"', "ended by skein stop"):
            holding.check(part in holding.stderr, f"it does not say {part!r}")
        says("the sum is 5\n", "relay", "answer", "5")    # in a new one
        assert [j["how"] for j in json.loads(c.tool("status", c.address, "--jobs", "--json")[1])["past_jobs"] if j["space"] == "prod"] == ["stopped"]
        begun.unlink()
        c.stop()


def unmet_demands():
    """A program says which of its demands no node could hold, once each, and that there is no node; one that only waits is no
    such demand."""
    with Cluster() as c:
        driver = c.program("skein_unmet")
        driver.wait_until(lambda: "no node takes workers" in driver.stderr, "word that there are no nodes", SECONDS)
        c.join("a", "--resources", "cpu=1")
        driver.wait_until(lambda: "done" in driver.stdout, "what a node can do", SECONDS)
        for part in ("asks for cpu=1,ssd=1, no node could ever hold it", "or add a node that has it", "on nobody: no node of that name is there"):
            driver.wait_until(lambda part=part: part in driver.stderr, part, SECONDS)
        driver.check(len(driver.stderr.splitlines()) == 3, "more or fewer lines")
        driver.process.send_signal(signal.SIGINT)
        driver.check(driver.wait(SECONDS) == 130, "it was not stopped by the signal")
        c.stop()


def late_head():
    """A node that finds no head says so, and goes on looking."""
    port = free_port()
    with Cluster() as c:
        node = c.run(c.skein, "join", f"127.0.0.1:{port}", "--name", "early")
        node.wait_until(lambda: "no head answers there" in node.stderr, "word of it", SECONDS)
        head = c.run(c.skein, "head", "--listen", f"127.0.0.1:{port}")
        node.wait_until(lambda: "skein node early: joined" in node.stdout, "word that it has joined", SECONDS)
        node.check(node.stderr.count("\n") == 1, "not one line")
        code, _, err = c.tool("stop", f"127.0.0.1:{port}")
        assert code == 0, err
        for run in (head, node):
            run.check(run.wait(SECONDS) == 0, "no orderly end")
        c.stop()


def word_counts():
    """Options of an example: one without files, and one that there is not."""
    with Cluster() as c:
        run = c.run(find_program("090_map_reduce"), "--top", 2, "--workers", 1)
        run.check(run.wait(SECONDS) == 0 and len(run.stdout.splitlines()) == 2, "not two words")
        for wrong, part in (("--bogus", "--bogus: no such option; this program has --top N, .* --workers N"), ("--top", "--top: a number is missing")):
            run = c.run(find_program("090_map_reduce"), wrong)
            run.check(run.wait(SECONDS) == 2 and re.search(part, run.stderr), f"it does not say {part}")
        c.stop()


def detached_alone():
    """On this host alone there is nobody who could keep it."""
    with Cluster() as c:
        run = c.run(find_program("skein_detached"), "make", "answer", "1")
        run.check(run.wait(SECONDS) == 1 and "not supported" in run.stderr and "skein head" in run.stderr, "no reason")
        c.stop()


# The longest first.
CASES = [("a head that remembers", remembered), ("state folders", state_folders), ("three hosts", namespaces), ("detached actors", detached), ("workers as space clients", workers_as_space_clients), ("detached on one host", detached_alone), ("a stopped agent", stopped_agent), ("a silent worker", silent_worker), ("a killed agent", killed_agent), ("the cluster's secret", secret_of_the_cluster),
         ("a head killed for good", killed_head_for_good), ("interrupted", interrupted), ("closed terminals", closed_terminals), ("examples run", examples_run),
         ("refusals", refusals), ("a killed head", killed_head), ("a killed worker", killed_worker), ("drained", drained), ("output of workers", output_of_workers), ("a full pipe", full_pipe),
         ("one after the other", one_after_the_other), ("stopped", stopped), ("one program is all", same_program),
         ("a stranger at the port", stranger_at_the_port), ("tokens", tokens), ("rude names", rude_names), ("silent connections", silent_connections),
         ("unmet demands", unmet_demands), ("a late head", late_head), ("word counts", word_counts)]

def run_at_once(cases):
    """Most of their time they wait: for a peer to be given up, for a process to end."""
    def outcome(case):
        begin = time.monotonic()
        try:
            case[1]()
            return f"ok      {case[0]} ({time.monotonic() - begin:.1f} s)"
        except Exception:    # told with the others
            return f"FAILED  {case[0]}\n{traceback.format_exc()}"

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        told = list(pool.map(outcome, cases))
    print("\n".join(told), flush=True)
    sys.exit(any(line.startswith("FAILED") for line in told))


if __name__ == "__main__":
    if not shutil.which("skein", path=str(pathlib.Path(os.environ.get("SKEIN_BUILD_DIR", "build/clang")) / "bin")):
        skip("the program skein is not built (SKEIN_CLI)")
    if len(sys.argv) > 1:
        run_cases(CASES, sys.argv[1])
    run_at_once(CASES)

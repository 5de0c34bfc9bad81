#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""What surrounds a process, for every program that there is: drivers with workers, heads, nodes, tools, `skein run`.

It does its work, or says in one line what is in the way. No program ends by a signal for it.
"""
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import termios
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases, skip  # noqa: E402

SECONDS = 120
TOKEN = "5" * 64


class Programs:
    def __init__(self, folder):
        self.skein, self.driver, self.output = find_program("skein"), find_program("010_hello_task"), find_program("skein_output")
        self.folder = pathlib.Path(folder)

    def start(self, before, *command, **env):
        """The command behind what a shell does first."""
        return Run(["sh", "-c", f'{before}; exec "$@"', "sh", *command], cwd=self.folder, SKEIN_TOKEN=TOKEN, HOME=self.folder, **env)

    def tools(self):
        """Each of them asks a head that is not there."""
        nobody = ("--address", "127.0.0.1:1")
        yield from ((self.skein, "status", "127.0.0.1:1"), (self.skein, "job", "list", *nobody),
                    (self.skein, "job", "submit", *nobody, "--", "true"), (self.driver, *nobody))


def one_line(run, *words):
    """It has failed by itself, and the only line says so."""
    code = run.wait(SECONDS)
    run.check(code > 0, f"exit code {code}")
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    run.check(len(lines) == 1, f"{len(lines)} lines for one mistake")
    for word in words:
        run.check(word in lines[0], f"'{word}' is not in it")
    run.check_nothing_left()


def file_limit(programs):
    """None of them may make a file: what needs one says so in a line, the others do their work."""
    said = "ulimit -f"

    def limited(*command, out="", seconds=SECONDS):
        """Its code, and what it says: into a pipe, which is no file."""
        done = subprocess.run(["sh", "-c", f'ulimit -f 0; exec "$@" {out}', "sh", *map(str, command)], cwd=programs.folder, capture_output=True, text=True,
                              timeout=seconds, check=False, env={**os.environ, "SKEIN_TOKEN": TOKEN, "HOME": str(programs.folder)})
        return done.returncode, done.stderr
    for command in ((programs.driver, "--workers", 1), (programs.skein, "head", "--listen", "127.0.0.1:0", "--state", "state"),
                    (programs.skein, "token", "--file", "new")):
        code, line = limited(*command)
        assert code == 1 and line.count("\n") == 1 and said in line, f"{command}: {code} {line}"
    for tool in programs.tools():
        code, line = limited(*tool)
        assert code > 0 and line.splitlines()[-1].startswith("error: "), f"{tool}: {code} {line}"
    # What it prints goes into a file that may not grow.
    for command in ((programs.skein, "--help"), (programs.driver, "--help")):
        code, line = limited(*command, out="> printed")
        assert code == 1 and line.count("\n") == 1 and said in line, f"{command}: {code} {line}"
    code, lines = limited(programs.skein, "run", "--standalone", "--nproc-per-node", 1, programs.driver)
    assert code > 0 and said in lines, f"skein run: {code} {lines}"


def removed_folder(programs):
    gone = 'mkdir gone && cd gone && rmdir "$PWD"'
    lost = "the current folder of this process has been removed"
    with programs.start(gone, programs.driver, "--workers", 2) as run:
        run.check(run.wait(SECONDS) == 0 and run.stdout == "332833500\n", "not its number")
    with programs.start(gone, programs.output, "lines") as run:
        run.check(run.wait(SECONDS) == 0, "it failed")
    for option in ("--state", "--storage", "--runs"):
        with programs.start(gone, programs.skein, "head", "--listen", "127.0.0.1:0", option, "here") as run:
            one_line(run, "here", lost)
    with programs.start(gone, programs.skein, "join", "127.0.0.1:1", "--storage", "here") as run:
        one_line(run, "here", lost)
    with programs.start(gone, programs.skein, "token", "--file", "here") as run:
        one_line(run, "here", lost)
    with programs.start("cd .", programs.skein, "head", "--listen", "127.0.0.1:0", "--storage", programs.folder / "files") as head:
        at = head.wait_until(lambda: next((line.split()[-1] for line in head.stdout.splitlines() if "skein join" in line), None), "address")
        with programs.start(gone, programs.skein, "join", at, "--storage", programs.folder / "node") as node:
            node.wait_until(lambda: "joined" in node.stdout, "word that it has joined")
            with programs.start(gone, programs.driver, "--address", at) as run:
                one_line(run, "folder", "removed")
            # "." is an empty folder there.
            with programs.start(gone, programs.skein, "job", "submit", "--address", at, "--working-dir", ".", "--", "true") as run:
                run.check(run.wait(SECONDS) == 0, "no job")
            with programs.start(gone, programs.skein, "status", at) as run:
                run.check(run.wait(SECONDS) == 0, "no status")
            with programs.start("cd .", programs.skein, "stop", at) as run:
                run.check(run.wait(SECONDS) == 0, "no stop")
            node.check(node.wait(SECONDS) == 0, "no orderly end")
        head.check(head.wait(SECONDS) == 0, "no orderly end")


def inside(programs):
    """With ::1 alone: all that has a default address finds the others there."""
    with programs.start("cd .", programs.driver, "--workers", 2) as run:
        run.check(run.wait(SECONDS) == 0, "no workers on this host")
    with programs.start("cd .", programs.skein, "head", "--storage", programs.folder / "files") as head:
        head.wait_until(lambda: "listens on tcp:[::1]:7117" in head.stdout, "address")
        with programs.start("cd .", programs.skein, "join", "--storage", programs.folder / "node", "--resources", "cpu=2") as node:
            node.wait_until(lambda: "joined" in node.stdout, "word that it has joined")
            with programs.start("cd .", programs.skein, "status") as run:
                run.check(run.wait(SECONDS) == 0, "no status")
            for address in ("[::1]:7117", "localhost"):
                with programs.start("cd .", programs.driver, "--address", address) as run:
                    run.check(run.wait(SECONDS) == 0 and run.stdout == "332833500\n", "not its number")
            with programs.start("cd .", programs.skein, "job", "submit", "--cpus", 1, "--", "true") as run:
                run.check(run.wait(SECONDS) == 0, "no job")
            with programs.start("cd .", programs.skein, "stop") as run:
                run.check(run.wait(SECONDS) == 0, "no stop")
            node.check(node.wait(SECONDS) == 0, "no orderly end")
        head.check(head.wait(SECONDS) == 0, "no orderly end")
    with programs.start("cd .", programs.skein, "status", "127.0.0.1:7117") as run:
        one_line(run, "127.0.0.1:7117")


def ipv6_alone(programs):
    """In a network of its own, where this test is started again."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        print("        not run, it needs the programs unshare and ip", flush=True)
        return
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    only = "ip link set lo up && ip address del 127.0.0.1/8 dev lo && ip -6 address show dev lo | grep -q ::1"
    if subprocess.run([*own, "sh", "-c", only], capture_output=True, check=False).returncode != 0:
        print("        not run, no network without IPv4 can be made here", flush=True)
        return
    done = subprocess.run([*own, "sh", "-c", f'{only} && exec "$@"', "sh", sys.executable, __file__, "--inside"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def on_a_terminal(programs, *command):
    """What comes out of a terminal that stops whoever prints from the background, and the exit code."""
    ours, theirs = pty.openpty()
    how = termios.tcgetattr(theirs)
    how[1] &= ~termios.OPOST
    how[3] |= termios.TOSTOP
    termios.tcsetattr(theirs, termios.TCSANOW, how)

    def begin():
        os.setsid()
        os.close(os.open(os.ttyname(theirs), os.O_RDWR))   # the terminal of this session
    process = subprocess.Popen([str(a) for a in command], cwd=programs.folder, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=begin,
                               env={**os.environ, "SKEIN_TOKEN": TOKEN, "TERM": "xterm"})
    os.close(theirs)
    end = threading.Timer(SECONDS, process.kill)   # of one that is stopped
    end.start()
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    end.cancel()
    return process.wait(SECONDS), said.decode()


def tostop(programs):
    code, said = on_a_terminal(programs, programs.output, "lines", "--workers", 1)    # two would print into each other's lines
    assert code == 0, f"exit code {code}: {said}"
    for i in range(20):
        assert f"task {i}\n" in said and f"error of task {i}\n" in said, f"no line of task {i}: {said}"


def unfinished_line(programs):
    """A warning begins a line of its own, whatever stands on the terminal's last one."""
    code, said = on_a_terminal(programs, programs.output, "lost")
    assert code == 0, f"exit code {code}: {said}"
    at = said.index("a worker was lost")
    assert "calls that may run again do" in said[at:].splitlines()[0], said
    before = said[said.index("half a line"):at]
    assert " " * 79 + "\r" in before and "\r" not in before.rsplit("\r", 1)[1], repr(before)


CASES = [("a limit on files", file_limit), ("a removed folder", removed_folder), ("::1 alone", ipv6_alone), ("a terminal with tostop", tostop),
         ("an unfinished line", unfinished_line)]

if __name__ == "__main__":
    if not sys.platform.startswith("linux"):
        skip("it needs Linux")
    only = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as name:
        programs = Programs(name)
        if only == "--inside":
            inside(programs)
        else:
            run_cases([(title, lambda case=case: case(programs)) for title, case in CASES], only)

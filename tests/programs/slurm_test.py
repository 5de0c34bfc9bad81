#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs under a real Slurm of four nodes, which is started here and is gone in the end.

    slurm_test.py [NAME]

It lives in namespaces of its own: names of hosts, network, processes. So every node has its own host name, ports are free, and with
the test all of it ends.
"""
# label: runtime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, environment, find_program, run_cases, skip  # noqa: E402

EXAMPLES = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "examples"
SECONDS = 40.0
NODES = ["n1", "n2", "n3", "n4"]
CPUS = 2
TOOLS = ["munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scancel", "sinfo", "squeue", "unshare", "ip", "mount"]
INSIDE = "SKEIN_SLURM_TEST_INSIDE"


def enter_namespaces():
    """Runs this test again as the first process of its namespaces: when it ends, the kernel ends all others there."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        skip(f"no Slurm: {', '.join(missing)} not installed (packages slurm-wlm, munge, iproute2)")
    if os.geteuid() != 0:
        skip("only root can start Slurm's daemons and give each node its own host name")
    inside = ["unshare", "--uts", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        skip("this machine does not give namespaces of one's own")
    sys.exit(subprocess.run([*inside, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}, check=False).returncode)


CONF = """ClusterName=skein
SlurmctldHost=control
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={home}/munge/socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SlurmdLogFile={home}/log/%n.slurmd
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Slurm:
    """munged, slurmctld and four slurmd."""

    def __init__(self, home):
        self.home = pathlib.Path(home)
        self.conf = self.home / "slurm.conf"
        self.daemons = []

    def start(self):
        for folder in ("munge", "state", "log", "config", *(f"spool.{node}" for node in NODES)):
            (self.home / folder).mkdir(mode=0o755)
        self.home.chmod(0o755)    # munge wants it so
        hosts = self.home / "hosts"
        addresses = {node: f"10.77.0.{i}" for i, node in enumerate(NODES, 1)}
        hosts.write_text("127.0.0.1 localhost\n10.77.0.10 control\n" + "".join(f"{ip} {node}\n" for node, ip in addresses.items()))
        # Not 127.0.0.x: getaddrinfo() takes a host with loopback alone for one without addresses.
        for command in (["ip", "link", "set", "lo", "up"], *(["ip", "address", "add", ip, "dev", "lo"] for ip in ("10.77.0.10", *addresses.values())),
                        ["hostname", "control"], ["mount", "--bind", hosts, "/etc/hosts"]):
            subprocess.run(command, check=True)
        self.conf.write_text(CONF.format(home=self.home) + "".join(f"NodeName={node} NodeAddr={ip} Port={6820 + int(node[1:])} CPUs={CPUS} RealMemory=512\n" for node, ip in addresses.items()))
        key = self.home / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = self.home / "munge"
        self.daemon("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
                    f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        self.wait_until(lambda: (munge / "socket").exists(), "munged")
        self.daemon("slurmctld", "slurmctld", "-D", "-f", self.conf)
        for node in NODES:
            self.daemon(node, "unshare", "--uts", "sh", "-c", f"hostname {node} && exec slurmd -D -N {node} -f {self.conf}")
        self.wait_until(self.is_idle, "idle nodes")

    def daemon(self, name, *command):
        with open(self.home / "log" / name, "wb") as log:
            self.daemons.append((name, subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.variables())))

    def variables(self):
        return environment(SLURM_CONF=self.conf, XDG_CONFIG_HOME=self.home / "config")

    def ask(self, *command):
        return subprocess.run(command, env=self.variables(), capture_output=True, text=True, check=False, timeout=SECONDS).stdout

    def is_idle(self):
        return self.ask("sinfo", "-h", "-N", "-o", "%N %t").split("\n")[:-1] == [f"{node} idle" for node in NODES]

    def wait_until(self, condition, what):
        end = time.monotonic() + SECONDS
        while not condition():
            dead = [name for name, process in self.daemons if process.poll() is not None]
            if dead or time.monotonic() > end:
                logs = "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}\n" for path in (self.home / "log").iterdir())
                raise AssertionError(f"no {what}; ended: {dead or 'none'}; sinfo: {self.ask('sinfo', '-N', '-l')}\n{logs}")
            time.sleep(0.05)

    def stop(self):
        for _, process in reversed(self.daemons):
            process.terminate()
        for _, process in reversed(self.daemons):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def run(self, *command, **env):
        return Run(command, cwd=self.home, **{"SLURM_CONF": self.conf, "XDG_CONFIG_HOME": self.home / "config", **env})

    def check_ends(self, run, *codes):
        run.check(run.wait(SECONDS) in codes, f"exit code {run.process.returncode}")
        run.check_nothing_left()
        self.wait_until(self.is_idle, "idle nodes after the job")


def nodes_that_ran(run):
    ran = dict(re.findall(r"^(\S+) ran (\d+) tasks$", run.stdout, re.M))
    run.check(all(int(tasks) > 0 for tasks in ran.values()), "not all nodes have run tasks")
    return sorted(ran)


def two_nodes(wanted, by="$SLURMD_NODENAME"):
    """The example that says on which nodes tasks ran: until so many have."""
    return ["sh", "-c", f'NODE={by} exec {find_program("095_two_nodes")} {wanted}']


def one_task_a_node(slurm):
    with slurm.run("srun", "-N4", *two_nodes(4)) as run:
        slurm.check_ends(run, 0)
        run.check(nodes_that_ran(run) == NODES, "not all nodes took part")
        run.check(run.stderr == "", "somebody says something")


def several_tasks_a_node(slurm):
    with slurm.run("srun", "-N2", "-n4", *two_nodes(4, "$SLURMD_NODENAME.$SLURM_LOCALID")) as run:
        slurm.check_ends(run, 0)
        run.check(nodes_that_ran(run) == ["n1.0", "n1.1", "n2.0", "n2.1"], "not all tasks took part")


def one_node(slurm):
    with slurm.run("srun", "-N1", "-n2", find_program("080_parameter_server")) as run:
        slurm.check_ends(run, 0)
        run.check(run.stdout == (EXAMPLES / "080_parameter_server.expected").read_text(), "another output than without Slurm")


def run_with_result(slurm):
    """Every rank of a train::run() gets rank 0's result, also in the second run of a program, over nodes."""
    with slurm.run("srun", "-N3", "-n3", find_program("skein_run"), "in turn") as run:
        slurm.check_ends(run, 0)
        for text in ("first: ok", "first value: sum=6 ranks=3", "second value: 126", "third: ok"):
            run.check(run.stdout.count(text) == 3, f"{text!r} is not from three ranks")
    with slurm.run("srun", "-N1", "-n2", find_program("skein_run"), "throws") as run:
        slurm.check_ends(run, 1)
        run.check("rank 1 of 2: no such digits" in run.stdout, "the rank is not named")


def batch_script(slurm):
    """The script itself has Slurm's variables as well, and is no member; the step in it is a cluster."""
    script = slurm.home / "script"
    script.write_text("#!/bin/sh\n" + find_program("010_hello_task") + "\nsrun sh -c '" + two_nodes(4)[2] + "'\necho end with $?\n")
    out = slurm.home / "script.out"
    with slurm.run("sbatch", "--wait", "-N4", "-o", out, script) as run:
        slurm.check_ends(run, 0)
        said = out.read_text()
        run.check(said.startswith((EXAMPLES / "010_hello_task.expected").read_text()), f"the script's own program: {said}")
        run.check(re.findall(r"^(n\d) ran", said, re.M) == NODES and said.endswith("end with 0\n"), f"the step: {said}")


def mpirun_in_allocation(slurm):
    """Its processes on other nodes are started by a step of one task a node: Slurm's variables are there, too, and mean that one."""
    if not shutil.which("mpirun"):
        return print("        mpirun is not installed: Open MPI in an allocation is left out")
    program = two_nodes(4, "$OMPI_COMM_WORLD_RANK")
    with slurm.run("salloc", "-N2", "-n4", "mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo", "--mca", "btl", "self", *program, SKEIN_MASTER_HOST="n1") as run:
        slurm.check_ends(run, 0)
        run.check(nodes_that_ran(run) == ["0", "1", "2", "3"], "not all processes took part")


def waiting_job(slurm, size=4, *options):
    """One that waits for nine nodes, with workers on all of its own."""
    run = slurm.run("srun", f"-N{size}", *options, *two_nodes(9))
    run.wait_until(lambda: len(workers_of(run)) >= size, "workers", SECONDS)
    return run


def cancel(slurm, run):
    slurm.ask("scancel", "-u", "root")
    run.check(run.wait(SECONDS) != 0, "the job ended well")
    slurm.check_ends(run, run.process.returncode)


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def workers_of(run):
    return [pid for pid in run.marked.processes() if any(word.startswith("--skein-worker") for word in words_of(pid))]


def rank_of(run, rank):
    """The process of this rank: the only one of its task that srun's daemon has started."""
    for pid in run.marked.processes():
        words = words_of(pid)
        if not words or not words[0].endswith("095_two_nodes") or len(words) != 3:
            continue
        if f"SLURM_PROCID={rank}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    run.fail(f"there is no rank {rank}")


def killed_driver(slurm):
    """With the first process all end; the others say why."""
    # Else srun terminates the step when the first process has ended, with or without what the others said last.
    with waiting_job(slurm, 4, "--kill-on-bad-exit=0", "--wait=0") as run:
        os.kill(rank_of(run, 0), 9)
        slurm.check_ends(run, 1, 137)
        run.check("has been gone for 10 s" in run.stderr, "the others do not say why")


def killed_node(slurm):
    """The others go on with what they have."""
    with waiting_job(slurm) as run:
        os.kill(rank_of(run, 3), 9)
        run.wait_until(lambda: "Killed" in run.stderr and workers_of(run), "Slurm's word", SECONDS)
        run.check(run.process.poll() is None, "all ended with one node")
        cancel(slurm, run)


def cancelled(slurm):
    with waiting_job(slurm) as run:
        cancel(slurm, run)


def two_jobs(slurm):
    """At a time on the same hosts, each a cluster of its own."""
    with waiting_job(slurm, 2) as first, slurm.run("srun", "-N2", *two_nodes(2)) as second:
        second.check(second.wait(SECONDS) == 0, f"exit code {second.process.returncode}")
        second.check(nodes_that_ran(second) == NODES[:2], "not all nodes took part")
        cancel(slurm, first)


def main():
    if INSIDE not in os.environ:
        enter_namespaces()
    del os.environ[INSIDE]
    with tempfile.TemporaryDirectory(prefix="skein-slurm-") as home:
        slurm = Slurm(home)
        cases = [("srun -N4", one_task_a_node), ("several tasks on a node", several_tasks_a_node), ("one node", one_node), ("a run with its result", run_with_result), ("two jobs", two_jobs),
                 ("a batch script", batch_script), ("mpirun in an allocation", mpirun_in_allocation), ("a killed driver", killed_driver),
                 ("a killed node", killed_node), ("cancelled", cancelled)]
        try:
            slurm.start()
            run_cases([(name, lambda case=case: case(slurm)) for name, case in cases], sys.argv[1] if len(sys.argv) > 1 else None)
        finally:
            slurm.stop()


if __name__ == "__main__":
    main()

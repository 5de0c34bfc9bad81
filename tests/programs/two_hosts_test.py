#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/310_two_hosts as its first lines say: a training on two network namespaces, one of which is cut off for a while.

    two_hosts_test.py [NAME]
"""
# label: train
import os
import pathlib
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases, skip  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
EXAMPLE = SOURCE / "examples" / "310_two_hosts"
SECONDS = 240.0


def by_script(check):
    """Runs the script; neither a process nor a file nor a namespace is left."""
    with tempfile.TemporaryDirectory(prefix="skein-two-hosts-") as folder:
        with Run([EXAMPLE / "start.sh", find_program("skein"), find_program("300_elastic_mnist"), "--logical-shards", 8, "--samples", 1600, "--test", 200],
                 cwd=folder, TMPDIR=folder, HOME=folder) as run:
            check(run)
            run.check_nothing_left()
            left = [name for name in os.listdir("/run/netns") if name in (f"two{run.process.pid}a", f"two{run.process.pid}b")]
            run.check(not left, f"namespaces are left: {left}")
        left = sorted(os.listdir(folder))
        assert not left, f"files are left: {left}"


def as_it_is():
    """It prints what its .expected file says."""
    def check(run):
        run.check(run.wait(SECONDS) == 0, "it failed")
        run.check(run.stdout == (EXAMPLE / "310_two_hosts.expected").read_text(), "another output")
    by_script(check)


def stopped():
    """A signal ends it, with all that it has made."""
    def check(run):
        run.wait_until(lambda: "both hosts train" in run.stdout, "a training", SECONDS)
        run.process.send_signal(signal.SIGINT)
        run.check(run.wait(SECONDS) == 130, "it was not stopped")
    by_script(check)


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("ip"):
        skip("network namespaces need root and the program ip (package iproute2)")
    run_cases([("as it is", as_it_is), ("stopped", stopped)], sys.argv[1] if len(sys.argv) > 1 else None)

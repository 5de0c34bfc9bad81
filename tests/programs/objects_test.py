#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects on real processes: what is there before the first one, what is left of many, kills, a full store, none.

    objects_test.py [NAME]
"""
# label: runtime
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import Run, find_program, run_cases, skip  # noqa: E402

SECONDS = 120.0


def expect(lines, *arguments, said="", **variables):
    with tempfile.TemporaryDirectory() as folder, Run([find_program("skein_objects"), *arguments], cwd=folder, **variables) as run:
        run.check(run.wait(SECONDS) == 0, f"exit code {run.process.returncode}")
        run.check(run.stdout.splitlines() == lines, "other lines")
        run.check(said in run.stderr, f"nothing says: {said}")
        run.check_nothing_left()


def nothing_before_the_first_object():
    """No thread and no page; then both."""
    expect(["threads 0 MiB 0", "threads 1 MiB 1"], "idle", "--workers", 2, SKEIN_STORE="64MiB")


def three_thousand_results_dropped():
    """Their memory is used again, and given back when nothing changes: [V4]."""
    expect(["at most few then 0"], "drop", 3000, "--workers", 2)


def workers_killed():
    """Tasks run again on the objects that live on: [V5]."""
    expect(["right"], "kills", 5, "--workers", 3)


def a_full_store():
    """What finds no room travels in messages: [V6]."""
    expect(["4 of 6 in the store", "right"], "full", 6, "--workers", 2, SKEIN_STORE="33MiB", SKEIN_SPILL="0",
           said="waits for room in the store")


def more_than_the_store():
    """What was not read for longest lies in files without names: [V12]."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        expect(["20 of 20 in the store", "right"], "full", 20, "--workers", 2, SKEIN_STORE="33MiB", SKEIN_SPILL=folder)
        if os.listdir(folder):
            sys.exit(f"files are left: {os.listdir(folder)}")


def workers_killed_and_files():
    expect(["right"], "kills", 5, "--workers", 3, SKEIN_STORE="16MiB")


@contextlib.contextmanager
def small_volume(mebibytes, *options):
    """A file system of its own, in a file."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        image, at = pathlib.Path(folder, "image"), pathlib.Path(folder, "at")
        at.mkdir()
        with open(image, "wb") as made:
            made.truncate(mebibytes << 20)
        for command in (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", ",".join(["loop", *options]), image, at]):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError as e:
                skip(f"no small volume here: {e}")
            if done.returncode != 0:
                skip(f"no small volume here: {' '.join(map(str, command))}: {done.stderr.strip()}")
        try:
            yield at
        finally:
            subprocess.run(["umount", at], check=True)


def a_full_volume():
    """One line, and what finds no room travels in messages: [V15]."""
    with small_volume(24) as folder:
        expect(["6 of 8 in the store", "right"], "full", 8, "--workers", 2, SKEIN_STORE="33MiB", SKEIN_SPILL=folder,
               said="objects are not written to disk any more")


def folders_that_are_refused():
    """[V14]."""
    def refused(folder, why):
        with Run([find_program("skein_objects"), "idle"], SKEIN_SPILL=folder) as run:
            run.check(run.wait(SECONDS) == 2, f"exit code {run.process.returncode}")
            run.check(why in run.stderr and str(folder) in run.stderr, f"nothing says: {why}")

    refused("/dev/shm", "memory itself")
    refused("/there/is/none", "no such file or directory")
    with small_volume(24, "ro") as folder:
        refused(folder, "read-only file system")


def no_store():
    """The same by messages: [V7]."""
    expect(["0 of 3 in the store", "right"], "full", 3, "--workers", 2, SKEIN_STORE="0")


def results_of_long_calls():
    """Each is there before the plain call behind it has ended."""
    expect([f"{i} of {1 << 18}" for i in range(4)], "long_calls", "--workers", 1)


def calls_of_a_plain_function():
    """One with a large argument leaves while that runs."""
    expect(["it ran meanwhile"], "from_plain", "--workers", 2)


def a_wrong_size():
    with Run([find_program("skein_objects"), "idle"], SKEIN_STORE="much") as run:
        run.check(run.wait(SECONDS) == 2, f"exit code {run.process.returncode}")
        run.check("much is no size of a store" in run.stderr, "another reason")


CASES = [("nothing before the first object", nothing_before_the_first_object),
         ("three thousand results dropped", three_thousand_results_dropped), ("workers killed", workers_killed),
         ("a full store", a_full_store), ("more than the store", more_than_the_store),
         ("workers killed and files", workers_killed_and_files), ("folders that are refused", folders_that_are_refused),
         ("a full volume", a_full_volume), ("no store", no_store),
         ("results of long calls", results_of_long_calls), ("calls of a plain function", calls_of_a_plain_function),
         ("a wrong size", a_wrong_size)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

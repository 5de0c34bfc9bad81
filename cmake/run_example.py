#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_example.py PROGRAM EXPECTED: runs an example and compares what it prints.

EXPECTED, line by line: an optional first line `#args: ...` (arguments; {scratch} is an empty folder that
is removed afterwards), then literal lines, lines `~regular expression` (whole line), and `...` alone for
any number of lines. Standard output is compared; the exit code must be 0.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile


def matches(expected: list, lines: list) -> int:
    """-1 when `lines` fit, else the index of the first expected line that could not be met (dynamic, no recursion)."""
    reachable, furthest = {0}, 0
    for index, want in enumerate(expected):
        if want == "...":
            reachable = set(range(min(reachable), len(lines) + 1)) if reachable else set()
            continue
        following = set()
        for at in reachable:
            if at < len(lines) and (re.fullmatch(want[1:], lines[at]) if want.startswith("~") else want == lines[at]):
                following.add(at + 1)
        if not following:
            return index
        reachable, furthest = following, index
    return -1 if len(lines) in reachable else len(expected)


def main() -> int:
    program, expected_file = sys.argv[1], sys.argv[2]
    with open(expected_file, encoding="utf-8") as file:
        expected = file.read().splitlines()
    arguments = []
    scratch = tempfile.mkdtemp(prefix="skein-example-")
    if expected and expected[0].startswith("#args:"):
        arguments = shlex.split(expected[0][len("#args:"):].replace("{scratch}", scratch))
        expected = expected[1:]
    try:
        done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=float(os.environ.get("SKEIN_EXAMPLE_SECONDS", "550")), cwd=scratch, check=False)
    except subprocess.TimeoutExpired as late:
        print(f"{program} did not end in time; it printed:\n{late.stdout}\n{late.stderr}")
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode == 77:
        print(done.stdout + done.stderr)
        return 77
    problem = matches(expected, done.stdout.splitlines())
    if done.returncode == 0 and problem < 0:
        print(f"{program}: as expected ({len(expected)} lines)")
        return 0
    print("---- it printed\n" + done.stdout + "---- and on standard error\n" + done.stderr + "----")
    if done.returncode != 0:
        print(f"exit code {done.returncode}, expected 0")
    if problem == len(expected):
        print("it printed more than expected")
    elif problem >= 0:
        print(f"{expected_file}: could not be met: {expected[problem]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())

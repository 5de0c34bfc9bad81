#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a file has no licence or copyright, or one that LICENSES/ lacks (reuse lint), or a source does not say its
licence in its first lines. What files do not say themselves is in REUSE.toml.
"""
import os
import subprocess
import sys

import checks

# REUSE-IgnoreStart
LINE = "SPDX-License-Identifier: Apache-2.0"
SOURCES = (".hpp", ".ipp", ".cpp", ".py", ".cmake")
FOLDERS = ("include", "src", "examples", "tests", "bench", "apps", "cmake", "scripts", "packaging", "modules", ".ci", "docs")


def begins_with_licence(path: str) -> bool:
    with open(os.path.join(checks.ROOT, path), encoding="utf-8", errors="replace") as file:
        return any(LINE in file.readline() for _ in range(3))


def main() -> int:
    late = [path for path in checks.files(*FOLDERS, suffixes=SOURCES)
            if not path.startswith(("tests/checks/planted/", "tests/fuzz/corpus/")) and not begins_with_licence(path)]
    problems = [f"{path}:1: no line {LINE} at the top" for path in late]
    tool = checks.tool("reuse")
    if not tool:
        return checks.without_tool("reuse", problems)
    done = subprocess.run([tool, "--root", ".", "lint", "--lines"], cwd=checks.ROOT, capture_output=True, text=True, check=False)
    found = [line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line]
    for path, what in found:
        path = os.path.relpath(os.path.join(checks.ROOT, path), checks.ROOT)
        if path not in late or what != "no license identifier":
            problems.append(f"{path}:1: {what}; write {LINE} at its top, or name it in REUSE.toml")
    if done.returncode != 0 and not found:
        problems.append(f"REUSE.toml:1: reuse lint ended with {done.returncode}: {done.stderr[-400:] or done.stdout[-400:]}")
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

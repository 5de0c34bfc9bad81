#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when clang-format 19 would change a file; check_format.py --write changes them."""
import concurrent.futures
import os
import shutil
import subprocess
import sys

import checks


def main() -> int:
    tool = shutil.which("clang-format-19") or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout if tool else ""
    if " 19." not in version:
        return checks.report([], "skipped: clang-format 19 is not here")
    write = "--write" in sys.argv
    paths = [path for path in checks.files("include", "src", "examples", "tests", "bench", "apps")
             if not path.startswith("tests/checks/") and not (path.startswith("src/") and "Written by scripts/" in checks.read(path)[:400])]

    def one(path: str) -> str:
        full = os.path.join(checks.ROOT, path)
        if write:
            return subprocess.run([tool, "-i", full], capture_output=True, text=True, check=False).stderr
        done = subprocess.run([tool, full], capture_output=True, text=True, check=False)
        return "" if done.stdout == checks.read(path) else f"{path}:1: is not formatted; run python3 scripts/check_format.py --write"

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for text in pool.map(one, paths) if text]
    return checks.report(problems, f"{len(paths)} files")


if __name__ == "__main__":
    sys.exit(main())

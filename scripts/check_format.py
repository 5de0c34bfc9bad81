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

    def some(part: list[str]) -> list[str]:   # starting the tool costs more than most files do
        full = [os.path.join(checks.ROOT, path) for path in part]
        done = subprocess.run([tool, *(["-i"] if write else ["--dry-run", "-Werror"]), *full], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return []
        bad = sorted({path for path in part if f"{os.path.join(checks.ROOT, path)}:" in done.stderr})
        return [f"{path}:1: is not formatted; run python3 scripts/check_format.py --write" for path in bad] or [done.stderr]

    parts = [paths[i:i + 100] for i in range(0, len(paths), 100)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for texts in pool.map(some, parts) for text in texts]
    return checks.report(problems, f"{len(paths)} files")


if __name__ == "__main__":
    sys.exit(main())

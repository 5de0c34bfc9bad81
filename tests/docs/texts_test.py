#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public name has a text in its header, and scripts/api_pages.py --missing names one that has none."""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def missing(root: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, os.path.join(root, "scripts", "api_pages.py"), "--missing"], capture_output=True, text=True, check=False)


done = missing(SOURCE)
print(done.stdout, done.stderr)
if done.returncode != 0:
    sys.exit(done.returncode)   # 77: no doxygen

with tempfile.TemporaryDirectory(prefix="skein-texts-") as scratch:
    shutil.copytree(os.path.join(SOURCE, "scripts"), os.path.join(scratch, "scripts"), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(os.path.join(SOURCE, "include", "skein", "core"), os.path.join(scratch, "include", "skein", "core"))
    header = os.path.join(scratch, "include", "skein", "core", "sleep.hpp")
    with open(header, encoding="utf-8") as file:
        text = file.read()
    planted = text.replace("/// Suspends for at least the given time.\n", "").replace("/// What yield returns.\n", "")
    assert planted.count("///") == text.count("///") - 2
    with open(header, "w", encoding="utf-8") as file:
        file.write(planted)
    found = missing(scratch)
    assert found.returncode == 1, found.stdout + found.stderr
    for name in ("function skein::sleep_for", "class skein::yield_awaiter"):
        assert f"{name} has no text" in found.stdout, found.stdout
    assert found.stdout.count("has no text") == 2, found.stdout

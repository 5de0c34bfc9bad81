#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein's headers compile with the newest fmt and Boost beside the system's.

fmt is the one in LibTorch's include folder, which the usual `-isystem libtorch/include` puts in front of the
system's. Boost >= 1.84 comes from SKEIN_NEWEST_BOOST (a folder that holds boost/), or from apt when it offers such a
package. Without either it is skipped. A compiled skein says what is wrong when another fmt stands in front of its own.
"""
import os
import re
import shutil
import subprocess
import sys

import consume

sys.path.insert(0, os.path.join(consume.SOURCE, "scripts"))
import compiling    # noqa: E402


def newest_fmt(into: str) -> str:
    """Links fmt's headers, and nothing else of LibTorch, into the folder; gives their version or why there are none."""
    folders = [flag for flag in compiling.libtorch_flags() if os.path.exists(os.path.join(flag, "fmt", "base.h"))]
    if not folders:
        return "no fmt: no LibTorch that brings one"
    with open(os.path.join(folders[0], "fmt", "base.h"), encoding="utf-8") as file:
        version = int(re.search(r"define FMT_VERSION (\d+)", file.read()).group(1)) // 10000
    if version < 11:
        return f"no fmt: LibTorch's has version {version}"
    os.symlink(os.path.join(folders[0], "fmt"), os.path.join(into, "fmt"))
    return f"fmt {version}"


def newest_boost(scratch: str, into: str) -> str:
    given = os.environ.get("SKEIN_NEWEST_BOOST", "")
    if given:
        os.symlink(os.path.join(given, "boost"), os.path.join(into, "boost"))
        return f"Boost of {given}"
    if not shutil.which("apt-cache") or not shutil.which("dpkg-deb"):
        return "no newer Boost: no apt here"
    known = subprocess.run(["apt-cache", "search", "--names-only", r"^libboost1\.[0-9]+-dev$"], capture_output=True, text=True, check=False).stdout
    versions = sorted(int(found) for found in re.findall(r"^libboost1\.(\d+)-dev", known, re.M))
    if not versions or versions[-1] < 84:
        return f"no newer Boost: apt's newest is 1.{versions[-1] if versions else '?'}"
    package = f"libboost1.{versions[-1]}-dev"
    if subprocess.run(["apt-get", "download", package], cwd=scratch, capture_output=True, check=False).returncode != 0:
        return f"no newer Boost: {package} cannot be downloaded"
    archive = next(name for name in os.listdir(scratch) if name.endswith(".deb"))
    consume.run("dpkg-deb", "-x", os.path.join(scratch, archive), os.path.join(scratch, "unpacked"))
    os.symlink(os.path.join(scratch, "unpacked", "usr", "include", "boost"), os.path.join(into, "boost"))
    return package


with consume.scratch() as folder:
    front = os.path.join(folder, "front")
    os.mkdir(front)
    said = [newest_fmt(front), newest_boost(folder, front)]
    print("; ".join(said), flush=True)
    if not os.listdir(front):
        sys.exit(77)
    source = os.path.join(folder, "all.cpp")
    with open(source, "w", encoding="ascii") as file:
        file.write("#include <skein/skein.hpp>\n")
        file.write("#include <skein/report.hpp>\n#include <skein/dist.hpp>\n")
    common = ["-std=c++20", "-fsyntax-only", "-pthread", "-Wall", "-Wextra", "-Werror", "-isystem", front]
    consume.run(consume.COMPILER, *common, "-DFMT_HEADER_ONLY", f"-I{consume.SOURCE}/include", source)
    if os.path.exists(os.path.join(front, "fmt")):
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <skein/core/check.hpp>\n")
        done = subprocess.run([consume.COMPILER, *common, "-DSKEIN_COMPILED", "-DSKEIN_FMT_MAJOR=9", f"-I{consume.SOURCE}/include", source],
                              capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "compiled with another fmt" in done.stderr and "-idirafter" in done.stderr, done.stderr

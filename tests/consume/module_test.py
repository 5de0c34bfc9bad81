#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project in a clean folder finds component `module` of an installed skein, imports it, and runs.

It calls a remote function, an actor and coroutines, sends an aggregate of its own, and catches an error of another
process. The system's CMake may be too old for modules; the test-only Python packages bring a newer one
(SKEIN_CMAKE names another). Skipped where modules cannot be built, with the reason that CMake prints.
"""
import os
import re
import shutil
import subprocess
import sys

import consume

PROJECT = os.path.join(consume.SOURCE, "tests", "consume", "module_project")


def version_of(cmake: str) -> tuple:
    try:
        said = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return (0, 0)
    found = re.search(r"cmake version (\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def newer_cmake() -> str:
    """The given CMake, one that SKEIN_CMAKE names, or the one beside the Python that the set-up's test packages have."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    deps = os.environ.get("SKEIN_DEPS") or os.path.join(home, "skein")
    for one in (os.environ.get("SKEIN_CMAKE", ""), consume.CMAKE, os.path.join(deps, "test-python", "bin", "cmake")):
        if one and version_of(one) >= (3, 28):
            return one
    return ""


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


def refused_below_3_28(prefix: str, folder: str) -> None:
    """An older CMake says why there is no module, and still finds the rest."""
    if version_of(consume.CMAKE) >= (3, 28):
        return
    os.makedirs(folder)
    with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="ascii") as file:
        file.write("cmake_minimum_required(VERSION 3.25)\nproject(old LANGUAGES CXX)\nfind_package(skein REQUIRED COMPONENTS runtime)\n"
                   "find_package(skein REQUIRED COMPONENTS module)\n")
    done = subprocess.run([consume.CMAKE, "-S", folder, "-B", os.path.join(folder, "build"), *consume.GENERATOR, *consume.COMPILERS,
                           f"-DCMAKE_PREFIX_PATH={prefix}"], capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0 and "no component 'module' here: CMake is" in said, done.stderr


cmake = newer_cmake()
if not cmake:
    skip("no CMake 3.28 or newer: the test-only Python packages of scripts/setup --test bring one, or set SKEIN_CMAKE")
if not shutil.which("ninja"):
    skip("no ninja, which modules need")
with consume.scratch() as scratch:
    prefix, build, program = (os.path.join(scratch, name) for name in ("prefix", "build", "program"))
    common = [*consume.GENERATOR, *consume.COMPILERS, *consume.FLAGS]
    said = consume.run(cmake, "-S", consume.SOURCE, "-B", build, *common, *consume.LIBRARY_FLAGS, "-DSKEIN_DEVELOPER_MODE=OFF", "-DSKEIN_TORCH=OFF", "-DSKEIN_CLI=OFF",
                       f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DCMAKE_INSTALL_LIBDIR=lib")
    reason = re.search(r"no skein::module \(([^\n]*)\)", said)
    if reason:
        skip(reason.group(1))
    consume.run(cmake, "--build", build, "-j2")
    consume.run(cmake, "--install", build)
    shipped = [name for _, _, names in os.walk(prefix) for name in names if name.endswith((".pcm", ".gcm"))]
    assert not shipped, f"compiled interfaces belong to one compiler and its flags, yet they are installed: {shipped}"
    consume.run(cmake, "-S", PROJECT, "-B", program, *common, f"-DCMAKE_PREFIX_PATH={prefix}")
    consume.run(cmake, "--build", program, "-j2")
    ran = consume.run(os.path.join(program, "importer"), "--workers", "2")
    assert ran == "42 6 1 1\n", f"unexpected: {ran!r}"
    refused_below_3_28(prefix, os.path.join(scratch, "old"))
print("the module is found, imported, and runs")

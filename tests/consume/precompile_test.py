#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein_precompile(target) reads skein's headers once: an edit of the program does not read them again."""
import os
import subprocess

import consume

HEAD = "cmake_minimum_required(VERSION 3.25)\nproject(mine LANGUAGES CXX)\nfind_package(skein REQUIRED COMPONENTS runtime)\n"
PROGRAM = """#include <skein/core/task.hpp>
#include <cstdio>
int main() { std::puts(SKEIN_VERSION_STRING); return 0; }
"""


def project(folder: str, text: str, prefix: str) -> tuple:
    """(build folder, what configuring said, whether it went well)"""
    os.makedirs(folder)
    for name, content in (("CMakeLists.txt", text), ("program.cpp", PROGRAM)):
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(content)
    build = os.path.join(folder, "build")
    done = subprocess.run([consume.CMAKE, "-S", folder, "-B", build, *consume.GENERATOR, f"-DCMAKE_CXX_COMPILER={consume.COMPILER}", *consume.FLAGS,
                           f"-DCMAKE_PREFIX_PATH={prefix}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return build, " ".join(done.stdout.split()), done.returncode == 0


def precompiled(build: str, target: str) -> str:
    with open(os.path.join(build, "CMakeFiles", f"{target}.dir", "cmake_pch.hxx"), encoding="utf-8") as file:
        return file.read()


with consume.installed_compiled() as (prefix, _), consume.scratch() as scratch:
    # Before and after what it links is named; a second target takes the same.
    build, said, well = project(os.path.join(scratch, "good"), HEAD + """
add_executable(mine program.cpp)
skein_precompile(mine)
target_link_libraries(mine PRIVATE skein::runtime)
add_executable(tests program.cpp)
target_link_libraries(tests PRIVATE skein::runtime)
skein_precompile(tests REUSE mine)
add_executable(small program.cpp)
target_link_libraries(small PRIVATE skein::runtime)
skein_precompile(small HEADERS <skein/core/task.hpp>)
""", prefix)
    assert well, said
    assert "<skein/skein.hpp>" in precompiled(build, "mine") and "<skein/core/task.hpp>" in precompiled(build, "small")
    first = consume.run(consume.CMAKE, "--build", build, "--verbose")
    assert first.count("-x c++-header") == 2, first      # of mine and of small
    assert consume.run(os.path.join(build, "tests")) == consume.run(os.path.join(build, "mine")) != ""
    with open(os.path.join(scratch, "good", "program.cpp"), "a", encoding="ascii") as file:
        file.write("// an edit\n")
    second = consume.run(consume.CMAKE, "--build", build, "--verbose")
    assert "program.cpp" in second and "-x c++-header" not in second, second

    # Whoever links the training part, directly or not, has that umbrella.
    build, said, well = project(os.path.join(scratch, "train"), HEAD + """
add_library(skein_train INTERFACE)
add_library(ours INTERFACE)
target_link_libraries(ours INTERFACE skein::runtime skein_train)
add_executable(mine program.cpp)
target_link_libraries(mine PRIVATE ours)
skein_precompile(mine)
""", prefix)
    assert well and "<skein/train.hpp>" in precompiled(build, "mine"), said

    for number, (text, expected) in enumerate((
            ("add_executable(mine program.cpp)\nskein_precompile(mine)\n", "mine links no skein::train or skein::runtime; link one"),
            ("skein_precompile(mine)\n", "there is no such target"),
            ("add_executable(mine program.cpp)\nskein_precompile(mine <skein/core.hpp>)\n", "unknown: <skein/core.hpp>"))):
        _, said, well = project(os.path.join(scratch, f"wrong{number}"), HEAD + text, prefix)
        assert not well and expected in said, said
print("precompiled once")

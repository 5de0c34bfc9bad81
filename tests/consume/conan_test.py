#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: packages
"""The Conan recipe makes a package without a network, for both compilers; its test program runs; g++ 11 is refused.

The libraries it requires are the system's, through packaging/conan/system; an index of packages is not asked.
"""
import os
import re
import shutil
import subprocess

import consume

RECIPE = os.path.join(consume.SOURCE, "packaging", "conan")
conan = consume.tool("conan")
consume.tool("ninja")


def settings_of(compiler: str) -> dict:
    name = "clang" if "clang" in consume.run(compiler, "--version") else "gcc"
    version = consume.run(compiler, "-dumpversion").split(".")[0]
    return {"SKEIN_CONAN_COMPILER": name, "SKEIN_CONAN_VERSION": version, "SKEIN_CONAN_CXX": shutil.which(compiler)}


with consume.scratch() as folder:
    there = {**os.environ, "CONAN_HOME": os.path.join(folder, "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("asio", "fmt", "pfr", "nlohmann_json", "libjpeg-turbo", "libpng", "libcurl"):
        consume.run(conan, "export", os.path.join(RECIPE, "system"), f"--name={name}", "--version=system", env=there)
    create = [conan, "create", RECIPE, "-nr", "-pr:a", os.path.join(RECIPE, "system", "profile"), "--build=missing",
              "-s", "build_type=Debug", "-c", "tools.cmake.cmaketoolchain:extra_variables={'CMAKE_CXX_FLAGS_DEBUG': '-O0'}",
              "-c", f"tools.cmake.cmake_layout:test_folder={folder}/test"]
    packages = set()
    for compiler in consume.both_compilers():
        # The test program is built by this build's own compiler; the package is the same for both.
        tested = [] if compiler == consume.COMPILER else ["-tf="]
        said = consume.run(*create, *tested, env={**there, **settings_of(compiler)})
        packages.update(re.findall(r"skein/[\d.]+#\w+:(\w+)", said) or re.findall(r"Package '(\w+)' (?:created|built)", said))
    assert len(packages) == 1, packages
    # The options bring skein::images and skein::etcd, and what they link.
    profile = ["-nr", "-pr:a", os.path.join(RECIPE, "system", "profile"), "--build=missing"]
    consume.run(conan, "install", "--requires=skein/0.1.0", "-o", "skein/*:images=True", "-o", "skein/*:etcd=True", *profile, "-g", "CMakeDeps", "-of", os.path.join(folder, "deps"),
                env={**there, **settings_of(consume.COMPILER)})
    made = [name for name in os.listdir(os.path.join(folder, "deps")) if re.fullmatch(r"skein-\w+-\w+-data\.cmake", name)]
    with open(os.path.join(folder, "deps", *made), encoding="utf-8") as file:
        assert "skein::images skein::images_header_only skein::etcd skein::etcd_header_only" in file.read()
    old = subprocess.run([*create, "-tf="], env={**there, "SKEIN_CONAN_COMPILER": "gcc", "SKEIN_CONAN_VERSION": "11"},
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert old.returncode != 0 and "skein needs g++ 12 or clang 16, not gcc 11" in old.stdout, old.stdout[-3000:]
    assert not os.path.exists(os.path.join(RECIPE, "test_package", "build")), "the test program was built inside the sources"

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: packages
"""The vcpkg port packages skein, keeps vcpkg's rules, and a project finds the package.

There is no vcpkg in Debian or PyPI: vcpkg_client.cmake stands for it. With VCPKG_ROOT set (a clone with its client
built) the client installs the port instead; it needs patchelf. The five libraries are the system's in both cases.
"""
import json
import os

import consume

PORTS = os.path.join(consume.SOURCE, "packaging", "vcpkg", "ports")
PORT = os.path.join(PORTS, "skein")


def expect_manifest() -> None:
    with open(os.path.join(PORT, "vcpkg.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    with open(os.path.join(consume.SOURCE, "include", "skein", "core", "config.hpp"), encoding="ascii") as file:
        assert f'SKEIN_VERSION_STRING "{manifest["version-semver"]}"' in file.read(), "vcpkg.json has another version"
    names = [entry if isinstance(entry, str) else entry["name"] for entry in manifest["dependencies"]]
    assert names == sorted(names), names
    assert all(name == name.lower() and "_" not in name for name in names + [manifest["name"]]), names


def by_stand_in(folder: str) -> str:
    packages = os.path.join(folder, "packages", "skein")
    consume.run(consume.CMAKE, "-DPORT=skein", f"-DCURRENT_PORT_DIR={PORT}", f"-DCURRENT_PACKAGES_DIR={packages}",
                f"-DCURRENT_BUILDTREES_DIR={folder}/tree", f"-DCOMPILER={consume.COMPILER}", f"-DGENERATOR={';'.join(consume.GENERATOR)}",
                "-P", os.path.join(consume.SOURCE, "tests", "consume", "vcpkg_client.cmake"))
    return packages


def by_client(folder: str, root: str) -> str:
    consume.tool("patchelf")
    system = os.path.join(folder, "system-ports")
    for name in ("asio", "boost-pfr", "fmt", "nlohmann-json"):
        os.makedirs(os.path.join(system, name))
        with open(os.path.join(system, name, "portfile.cmake"), "w", encoding="ascii") as file:
            file.write("set(VCPKG_POLICY_EMPTY_PACKAGE enabled)\n")
        with open(os.path.join(system, name, "vcpkg.json"), "w", encoding="ascii") as file:
            json.dump({"name": name, "version": "0"}, file)
    places = [f"--x-{name}-root={folder}/{name}" for name in ("install", "buildtrees", "packages")]
    there = {**os.environ, "VCPKG_FORCE_SYSTEM_BINARIES": "1", "VCPKG_DISABLE_METRICS": "1", "VCPKG_BINARY_SOURCES": "clear"}
    consume.run(os.path.join(root, "vcpkg"), "install", "skein", "--classic", f"--vcpkg-root={root}", f"--overlay-ports={PORTS}",
                f"--overlay-ports={system}", *places, env=there)
    triplets = [name for name in os.listdir(os.path.join(folder, "install")) if os.path.isdir(os.path.join(folder, "install", name, "share", "skein"))]
    assert len(triplets) == 1, triplets
    return os.path.join(folder, "install", triplets[0])


expect_manifest()
with consume.scratch() as folder:
    root = os.environ.get("VCPKG_ROOT", "")
    print("client:", root or "the stand-in (VCPKG_ROOT is not set)", flush=True)
    prefix = by_client(folder, root) if root else by_stand_in(folder)
    # The port moved the CMake folder: what it names has to be found from there.
    consume.expect_check_await(os.path.join(prefix, "share", "skein"))
    consume.configure_and_build(os.path.join(folder, "consumer"), f"-DCMAKE_PREFIX_PATH={prefix}", "-DLINK=runtime", "-DONE_FILE=ON")

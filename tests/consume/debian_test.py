#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: packages
"""CPack makes libskein-dev; lintian finds no error in it; a project is built from what it holds.

By default the package is unpacked into a folder. With SKEIN_DEBOOTSTRAP=1 it is installed into a new minimal
Debian 12 as well, with what it depends on, and the program is compiled there with g++ (root and minutes).
"""
import os
import shutil

import consume

CLEAN = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def make_package(folder: str) -> str:
    build = os.path.join(folder, "build")
    consume.run(consume.CMAKE, "-S", consume.SOURCE, "-B", build, *consume.GENERATOR, f"-DCMAKE_CXX_COMPILER={consume.COMPILER}",
                "-DSKEIN_DEVELOPER_MODE=OFF", "-DSKEIN_TORCH=OFF", "-DSKEIN_COMPILED=OFF", "-DSKEIN_MODULE=OFF", "-DCMAKE_INSTALL_PREFIX=/usr")
    cpack = os.path.join(os.path.dirname(shutil.which(consume.CMAKE)), "cpack")
    consume.run(cpack, "--config", os.path.join(build, "CPackConfig.cmake"), "-B", os.path.join(folder, "dist"))
    made = [name for name in os.listdir(os.path.join(folder, "dist")) if name.endswith(".deb")]
    assert made == ["libskein-dev_0.1.0_all.deb"], made
    return os.path.join(folder, "dist", made[0])


def host_settings(root: str) -> None:
    """The new machine reaches the archive as this one does."""
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(name, root + name)
    folders = ["/etc/apt/apt.conf.d", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"]
    for name in [os.path.join(at, name) for at in folders if os.path.isdir(at) for name in os.listdir(at)]:
        wanted = name.endswith((".crt", ".sources")) or "proxy" in name
        if wanted and (not name.endswith(".sources") or "bookworm" in open(name, encoding="utf-8").read()):
            os.makedirs(root + os.path.dirname(name), exist_ok=True)
            shutil.copy(name, root + name)
    os.makedirs(root + "/etc/ssl/certs", exist_ok=True)
    if os.path.exists("/etc/ssl/certs/ca-certificates.crt"):
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root + "/etc/ssl/certs/ca-certificates.crt")


def in_new_debian(folder: str, package: str) -> None:
    consume.tool("debootstrap")
    if os.geteuid() != 0:
        consume.skip("only root can make a Debian in a folder")
    root = os.path.join(folder, "root")
    consume.run("debootstrap", "--variant=minbase", "bookworm", root)
    host_settings(root)
    shutil.copy(package, os.path.join(root, "tmp"))
    shutil.copytree(consume.PROJECT, os.path.join(root, "tmp", "project"))
    there = ["chroot", root, "sh", "-e", "-c"]
    consume.run(*there, "apt-get -q update && apt-get -q -y install --no-install-recommends g++ make cmake pkg-config "
                        f"/tmp/{os.path.basename(package)}", env=CLEAN)
    consume.run(*there, "cd /tmp && cmake -S project -B build -DCMAKE_CXX_FLAGS=-O0 -DLINK=runtime -DONE_FILE=ON && cmake --build build", env=CLEAN)
    said = consume.run(*there, "/tmp/build/consumer && g++ -std=c++20 -O0 /tmp/project/one_file.cpp $(pkg-config --cflags --libs skein) -o /tmp/b && /tmp/b",
                       env=CLEAN)
    assert said == "skein 0.1.0: 42\n" * 2, said


dpkg_deb, lintian = consume.tool("dpkg-deb"), consume.tool("lintian")
with consume.scratch() as folder:
    package = make_package(folder)
    print(consume.run(lintian, "--allow-root", "--fail-on", "error", package), flush=True)
    root = os.path.join(folder, "unpacked")
    consume.run(dpkg_deb, "-x", package, root)
    usr = os.path.join(root, "usr")
    for name in ("doc/libskein-dev/copyright", "doc/libskein-dev/changelog.gz", "skein/check_await.py", "pkgconfig/skein.pc"):
        assert os.path.exists(os.path.join(usr, "share", name)), name
    consume.configure_and_build(os.path.join(folder, "consumer"), f"-DCMAKE_PREFIX_PATH={usr}", "-DLINK=runtime", "-DONE_FILE=ON")
    if os.environ.get("SKEIN_DEBOOTSTRAP"):
        in_new_debian(folder, package)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein is configured, installed and used with a PATH that holds no Python."""
import os
import shutil

import consume

NEEDED = ["cmake", "ninja", "make", "sh", "ld", "ld.lld", "ld.gold", "as", "ar", "ranlib", "nm", "strip", "objdump", "objcopy", "readelf"]

with consume.scratch() as folder:
    path = os.path.join(folder, "bin")
    os.mkdir(path)
    for name in NEEDED:
        if shutil.which(name):
            os.symlink(shutil.which(name), os.path.join(path, name))
    bare = {"PATH": path, "HOME": folder}
    done = consume.subprocess.run(["sh", "-c", "command -v python3 || command -v python"], env=bare, stdout=consume.subprocess.PIPE, check=False)
    assert done.stdout == b"", done.stdout
    # CMake looks into /usr/bin whatever PATH says: it must not ask for Python at all.
    no_python = ["-DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON"]
    consume.COMPILER = shutil.which(consume.COMPILER)
    consume.COMPILERS = [f"-DCMAKE_CXX_COMPILER={consume.COMPILER}"]
    prefix, build = os.path.join(folder, "prefix"), os.path.join(folder, "build")
    consume.install_header_only(build, prefix, *no_python, env=bare)
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        assert "python" not in file.read().replace("CMAKE_DISABLE_FIND_PACKAGE_Python", "").lower()
    # The form with static libraries asks for none either.
    consume.run(consume.CMAKE, build, "-DSKEIN_COMPILED=ON", env=bare)
    consume.configure_and_build(os.path.join(folder, "consumer"), f"-DCMAKE_PREFIX_PATH={prefix}", "-DLINK=runtime", "-DONE_FILE=ON", env=bare)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein installed into a folder is found by find_package, component by component."""
import os

import consume

with consume.scratch() as folder:
    prefix, build = os.path.join(folder, "prefix"), os.path.join(folder, "build")
    consume.run(consume.CMAKE, "-S", consume.SOURCE, "-B", build, f"-DCMAKE_CXX_COMPILER={consume.COMPILER}", "-DSKEIN_DEVELOPER_MODE=OFF",
                "-DSKEIN_TESTS=OFF", "-DSKEIN_EXAMPLES=OFF", "-DSKEIN_BENCH=OFF", "-DSKEIN_TORCH=OFF", f"-DCMAKE_INSTALL_PREFIX={prefix}")
    consume.run(consume.CMAKE, "--install", build)
    assert os.path.exists(os.path.join(prefix, "share", "licenses", "skein", "LICENSE"))
    for component in ("core", "runtime"):
        consume.configure_and_build(os.path.join(folder, component), f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCOMPONENTS={component}", f"-DLINK={component}")

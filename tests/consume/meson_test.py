#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Meson project finds the installed skein by pkg-config."""
import os

import consume

meson = consume.tool("meson")
consume.tool("pkg-config")
consume.tool("ninja")
with consume.scratch() as folder:
    prefix, build = os.path.join(folder, "prefix"), os.path.join(folder, "meson")
    consume.install_header_only(os.path.join(folder, "build"), prefix)
    there = {**os.environ, "PKG_CONFIG_PATH": os.path.join(prefix, "share", "pkgconfig"), "CXX": consume.COMPILER}
    consume.run(meson, "setup", build, consume.PROJECT, env=there)
    consume.run(meson, "compile", "-C", build, env=there)
    consume.expect_answer(os.path.join(build, "consumer"))

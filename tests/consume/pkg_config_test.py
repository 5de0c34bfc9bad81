#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The installed skein.pc is enough for one compiler line, also after the installed tree was moved."""
import os
import re

import consume

pkg_config = consume.tool("pkg-config")
with consume.scratch() as folder:
    prefix = os.path.join(folder, "moved")
    consume.install_header_only(os.path.join(folder, "build"), os.path.join(folder, "prefix"))
    os.rename(os.path.join(folder, "prefix"), prefix)
    there = {**os.environ, "PKG_CONFIG_PATH": os.path.join(prefix, "share", "pkgconfig")}
    with open(os.path.join(consume.SOURCE, "include", "skein", "core", "config.hpp"), encoding="ascii") as file:
        version = re.search(r'SKEIN_VERSION_STRING "(.*)"', file.read()).group(1)
    assert consume.run(pkg_config, "--modversion", "skein", env=there) == version + "\n"
    assert "fmt" in consume.run(pkg_config, "--print-requires", "skein", env=there)
    flags = consume.run(pkg_config, "--cflags", "--libs", "skein", env=there).split()
    assert "-lfmt" in flags and "-pthread" in flags and "-lskein_runtime" not in flags, flags
    program = os.path.join(folder, "program")
    for compiler in consume.both_compilers():
        consume.run(compiler, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", os.path.join(consume.PROJECT, "one_file.cpp"), *flags, "-o", program)
        consume.expect_answer(program)

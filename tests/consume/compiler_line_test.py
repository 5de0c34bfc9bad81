#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One compiler line is enough: with the split headers, with single_include/, and with src/skein.cpp beside them."""
import os

import consume

FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread", "-DFMT_HEADER_ONLY"]

with consume.scratch() as folder:
    sources = [os.path.join(consume.PROJECT, name) for name in ("main.cpp", "other.cpp")]
    program = os.path.join(folder, "program")
    # The single header is compiled once, for both files: it is the split headers' text, of which a check takes care.
    single = [f"-I{consume.SOURCE}/single_include", "-DUSE_SINGLE_INCLUDE", "-include", sources[1]]
    for more, files in (([f"-I{consume.SOURCE}/include"], sources), (single, sources[:1])):
        consume.run(consume.COMPILER, *FLAGS, *more, *files, "-o", program)
        assert consume.run(program) == "skein 0.1.0: 42\n"
    compiled = [flag for flag in FLAGS if flag != "-DFMT_HEADER_ONLY"] + ["-DSKEIN_COMPILED", f"-I{consume.SOURCE}/include"]
    consume.run(consume.COMPILER, *compiled, *sources, f"{consume.SOURCE}/src/skein.cpp", "-lfmt", "-o", program)
    assert consume.run(program) == "skein 0.1.0: 42\n"
    # Mixing both is refused with a sentence.
    mixed = os.path.join(folder, "mixed.cpp")
    for order in (("skein/skein.hpp", "skein/core/error.hpp"), ("skein/core/error.hpp", "skein/skein.hpp")):
        with open(mixed, "w", encoding="ascii") as file:
            for name in order:
                place = "single_include" if name == "skein/skein.hpp" else "include"
                file.write(f'#include "{consume.SOURCE}/{place}/{name}"\n')
        done = consume.subprocess.run([consume.COMPILER, *FLAGS, "-E", "-o", os.devnull, f"-I{consume.SOURCE}/include", mixed],
                                      capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "do not mix single_include/ with the split headers" in done.stderr, done.stderr[:2000]
    # Some x86-64 targets lack crc32 in their base set even where a function asks for SSE 4.2.
    if "clang" in consume.COMPILER and "x86_64" in consume.run(consume.COMPILER, "-dumpmachine"):
        with open(mixed, "w", encoding="ascii") as file:
            file.write("#include <skein/core/crc32c.hpp>\nunsigned f(skein::byte_span b) { return skein::crc32c(b, 0); }\n")
        quiet = [flag for flag in FLAGS if not flag.startswith("-W")]
        consume.run(consume.COMPILER, *quiet, "-S", "-o", os.devnull, "-mno-crc32",
                    f"-I{consume.SOURCE}/include", mixed)

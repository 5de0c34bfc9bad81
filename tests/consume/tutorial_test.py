#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who copies the code of a chapter out of the tutorial, in its order, has the program that the chapter says.

The blocks of the chapters without LibTorch are put together in an empty folder, compiled without
warnings, run, and what they print is compared with what the chapter shows: the output under each
piece, all together and in order, is the program's. The library is that of this build; its headers are
precompiled once. That the blocks are text of the examples is scripts/check_docs.py's to say.
"""
import glob
import os
import re
import sys

import consume

BLOCK = re.compile(r"^<!-- snippet: examples/([^ #:.]+)\.(cpp|expected)\S* -->\n"
                   r"```\w+\n(.*?)^```", re.M | re.S)
PAGES = glob.glob(os.path.join(consume.SOURCE, "docs", "tutorial", "*.md"))
CHAPTERS = sorted(page for page in PAGES if os.path.basename(page)[:2] in ("01", "02", "03", "04", "05", "06", "11", "12", "13"))


def extract(page: str) -> tuple:
    """(the program, what it prints); a page's second program is an example, which a test of its own runs."""
    with open(page, encoding="utf-8") as file:
        blocks = BLOCK.findall(file.read())
    own = [(kind, text) for name, kind, text in blocks if name == blocks[0][0]]
    return ("\n".join(text for kind, text in own if kind == "cpp"),
            "".join(text for kind, text in own if kind == "expected"))


def fmt_major(folder: str) -> str:
    with open(os.path.join(folder, "version.cpp"), "w", encoding="ascii") as file:
        file.write("#include <fmt/core.h>\nversion=FMT_VERSION\n")
    said = consume.run(consume.COMPILER, "-E", "-P", os.path.join(folder, "version.cpp"))
    return str(int(re.search(r"version=(\d+)", said).group(1)) // 10000)


if len(CHAPTERS) != 9:
    sys.exit(f"nine chapters were expected: {CHAPTERS}")
library = os.path.join(os.environ.get("SKEIN_BUILD_DIR", ""), "libskein_runtime.a")
if not os.path.exists(library):
    print("no libskein_runtime.a in SKEIN_BUILD_DIR: this build is header-only")
    sys.exit(77)
with consume.scratch() as scratch:
    flags = ["-std=gnu++20", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread", "-DSKEIN_COMPILED", f"-DSKEIN_FMT_MAJOR={fmt_major(scratch)}",
             f"-I{consume.SOURCE}/include"]
    header = os.path.join(scratch, "all.hpp")
    with open(header, "w", encoding="ascii") as header_file:
        header_file.write("#include <skein/skein.hpp>\n")
    suffix = "pch" if "clang" in os.path.basename(consume.COMPILER) else "gch"
    consume.run(consume.COMPILER, *flags, "-x", "c++-header", header, "-o", f"{header}.{suffix}")
    for chapter in CHAPTERS:
        name = os.path.basename(chapter)[:-len(".md")]
        code, expected = extract(chapter)
        assert "int main(" in code and expected, f"{chapter} shows no program, or not what it prints"
        source, program = os.path.join(scratch, name + ".cpp"), os.path.join(scratch, name)
        with open(source, "w", encoding="utf-8") as source_file:
            source_file.write(code)
        consume.run(consume.COMPILER, *flags, "-include", header, source, library, "-lfmt", "-o", program)
        said = consume.run(program, cwd=scratch, env={**os.environ, "SKEIN_WORKERS": "2"}, timeout=120)
        assert said == expected, f"{chapter} shows\n{expected}\nbut its program prints\n{said}"

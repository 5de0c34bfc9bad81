#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who copies the code of a chapter out of the tutorial, in its order, has the program that the chapter says.

The blocks of the chapters without LibTorch are put together in an empty folder, compiled without warnings, run, and what they print is
compared with what the chapter shows. The library is that of this build; its headers are precompiled once.
"""
import glob
import os
import re
import sys

import consume

BLOCK = re.compile(r"^```\{literalinclude\} (\S+)\n((?::[\w-]+:.*\n)*)```", re.M)
PAGES = glob.glob(os.path.join(consume.SOURCE, "docs", "tutorial", "*.md"))
CHAPTERS = sorted(page for page in PAGES if os.path.basename(page)[:2] in ("01", "02", "03", "04", "05", "06", "11", "12", "13"))


def included(page: str, path: str, options: dict) -> str:
    """What a reader of the page sees of the file."""
    with open(os.path.join(os.path.dirname(page), path), encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    begin, end = 0, len(lines)
    for name in options:
        if name not in ("language", "start-at", "start-after", "end-before"):
            sys.exit(f"{page}: this test does not know the option {name}")
    start = options.get("start-at", options.get("start-after"))
    if start is not None:
        begin = next((at for at, line in enumerate(lines) if start in line), None)
        if begin is None:
            sys.exit(f"{page}: {path} has no line with {start}")
        begin += "start-after" in options
    if "end-before" in options:
        end = next((at for at in range(begin, len(lines)) if options["end-before"] in lines[at]), None)
        if end is None:
            sys.exit(f"{page}: {path} has no line with {options['end-before']}")
    return "".join(lines[begin:end])


def extract(page: str) -> tuple:
    """(the program, what it prints); a page's second program is an example, which a test of its own runs."""
    program, output, first = "", None, None
    with open(page, encoding="utf-8") as file:
        for path, text in BLOCK.findall(file.read()):
            options = {name: value.strip().strip('"') for name, value in re.findall(r"^:([\w-]+):(.*)$", text, re.M)}
            first = first or path
            if os.path.splitext(path)[0] != os.path.splitext(first)[0]:
                continue
            if options.get("language") == "cpp":
                program += included(page, path, options)
            else:
                output = included(page, path, options)
    return program, output


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

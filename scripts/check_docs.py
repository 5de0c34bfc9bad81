#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a C++ snippet of README.md or docs/ is not text of a compiled file, or an example lacks .expected.

Before the block stands `<!-- snippet: PATH -->` or `<!-- snippet: PATH#TAG -->`: the block must be the
file, a run of its lines, or the lines between `// [TAG]` and `// [/TAG]`. Indentation is not compared.
Text that must not compile is marked `<!-- not a snippet: reason -->`. A path of this repository in
backquotes must exist, and so must the file of a `literalinclude` and the lines where what is shown begins and ends.
"""
import glob
import os
import re
import sys

import checks

BLOCK = re.compile(r"(?:<!-- (?:snippet: ([^ #]+)(?:#(\w+))?|(not a snippet): [^>]+) -->\s*\n)?^```cpp\n(.*?)^```", re.S | re.M)
INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)\n((?::[\w-]+:.*\n)*)```", re.M)
OPTION = re.compile(r"^:(start-at|start-after|end-before): \"?(.*?)\"?$", re.M)
NAMED = re.compile(r"`((?:docs|scripts|examples|bench|include|tests|cmake|packaging)/[\w./-]*\w)`")


def bare(text: str) -> list:
    return [line.strip() for line in text.strip("\n").splitlines()]


def included(page: str, text: str) -> list:
    """What is wrong with the files that a page shows parts of."""
    problems = []
    for block in INCLUDED.finditer(text):
        where = f"{page}:{checks.line_of(text, block.start())}"
        path = os.path.normpath(os.path.join(os.path.dirname(page), block.group(1)))
        if not os.path.exists(os.path.join(checks.ROOT, path)):
            problems.append(f"{where}: {path} does not exist")
            continue
        lines = checks.read(path).splitlines()
        for option, mark in OPTION.findall(block.group(2)):
            at = next((at for at, line in enumerate(lines) if mark in line), None)
            if at is None:
                problems.append(f"{where}: {path} has no line with {mark}")
                break
            lines = lines[at + 1:] if option != "end-before" else lines
    return problems


def main() -> int:
    problems = []
    pages = [page for page in ["README.md", *checks.files("docs", suffixes=(".md",))] if os.path.exists(os.path.join(checks.ROOT, page))]
    for page in pages:
        text = checks.read(page)
        for name in NAMED.finditer(text):
            if not os.path.exists(os.path.join(checks.ROOT, name.group(1))):
                problems.append(f"{page}:{checks.line_of(text, name.start())}: {name.group(1)} does not exist")
        problems += included(page, text)
        for block in BLOCK.finditer(text):
            where = f"{page}:{checks.line_of(text, block.start(4)) - 1}"
            path, tag, excused, snippet = block.groups()
            if excused:
                continue
            if path is None:
                problems.append(f"{where}: a C++ snippet without <!-- snippet: PATH --> before it; take it from a compiled example")
                continue
            if not os.path.exists(os.path.join(checks.ROOT, path)):
                problems.append(f"{where}: {path} does not exist")
                continue
            source = checks.read(path)
            if tag:
                region = re.search(rf"// \[{tag}\]\n(.*?)^\s*// \[/{tag}\]", source, re.S | re.M)
                if not region:
                    problems.append(f"{where}: {path} has no region // [{tag}] ... // [/{tag}]")
                    continue
                source = region.group(1)
            wanted, lines = bare(snippet), bare(source)
            if not any(lines[at:at + len(wanted)] == wanted for at in range(len(lines) - len(wanted) + 1)):
                problems.append(f"{where}: the snippet is not in {path}{'#' + tag if tag else ''}; copy it again")
    for example in sorted(glob.glob(os.path.join(checks.ROOT, "examples/[0-9]*"))):
        name = os.path.basename(example)
        if name.endswith(".cpp"):
            expected = example[:-4] + ".expected"
        elif os.path.isdir(example):
            expected = os.path.join(example, name + ".expected")
        else:
            continue
        if not os.path.exists(expected):
            problems.append(f"examples/{name}:1: no {os.path.relpath(expected, checks.ROOT)}: nothing compares what it prints")
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

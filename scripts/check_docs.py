#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a C++ snippet of README.md or docs/ is not text of a compiled file, or an example lacks .expected.

What a block shows is said by the line before it, as scripts/snippets.py explains; a block that is not
what its file has fails, and scripts/check --write writes it anew. C++ that must not compile is marked
`<!-- not a snippet: reason -->`. The numbers of a list go up by one. A path of this repository in backquotes must exist. A page shows its
code itself: `literalinclude` shows nothing in a Markdown viewer, and fails. A header named as
[`net/link.hpp`] must exist and be a link.
"""
import glob
import os
import re
import sys

import checks
import code_map
import snippets

CPP = re.compile(r"(?:<!-- ([^>]+) -->[ \t]*\n\s*)?^```cpp\n", re.M)
INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)", re.M)
NAMED = re.compile(r"`((?:docs|scripts|examples|bench|include|tests|cmake|packaging)/[\w./-]*\w)`")


NUMBERED = re.compile(r"^( *)(\d+)\. ")


def misnumbered(text: str) -> "list[tuple[int, str]]":
    """Lines of numbered lists whose number is not the one behind the last, with what is wrong."""
    found = []
    last: dict[int, int] = {}  # by indentation
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or not line.strip():
            continue
        item = NUMBERED.match(line)
        indent = len(item.group(1)) if item else len(line) - len(line.lstrip())
        last = {at: n for at, n in last.items() if at < indent or (item and at == indent)}
        if not item:
            continue
        value, before = int(item.group(2)), last.get(indent)
        if before is not None and value not in (before + 1, 1) or value == 1 == before:
            found.append((number, f"item {value} of a list behind item {before}"))
        last[indent] = value
    return found


def main() -> int:
    problems = []
    for page in snippets.pages():
        text = checks.read(page)
        for name in NAMED.finditer(text):
            if not os.path.exists(os.path.join(checks.ROOT, name.group(1))):
                problems.append(f"{page}:{checks.line_of(text, name.start())}: {name.group(1)} does not exist")
        problems += [f"{page}:{line}: {what}" for line, what in misnumbered(text)]
        problems += code_map.problems(page, text)
        for found in INCLUDED.finditer(text):
            problems.append(f"{page}:{checks.line_of(text, found.start())}: literalinclude shows nothing "
                            f"in a Markdown viewer; write <!-- snippet: PATH#TAG --> before a block and "
                            f"run scripts/check --write")
        for found in CPP.finditer(text):
            if not re.match(r"snippet: |not a snippet: ", found.group(1) or ""):
                problems.append(f"{page}:{checks.line_of(text, found.end()) - 1}: a C++ snippet without "
                                f"<!-- snippet: PATH --> before it; take it from a compiled example")
        for block in snippets.BLOCK.finditer(text):
            where = f"{page}:{checks.line_of(text, block.start(7)) - 1}"
            new, problem = snippets.wanted(block)
            if problem:
                problems.append(f"{where}: {problem}")
            elif new != block.group(7):
                problems.append(f"{where}: the snippet is not in {block.group(2)}; "
                                f"run scripts/check --write")
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

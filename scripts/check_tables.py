#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a table's cell of docs/limitations.md or docs/semantics.md has more characters than a reader takes in at once.

A cell is what stands between two bars of a line that begins with one; `\\|` is no bar. An anchor, `<a id="x"></a>`, which
nobody sees, is not counted.
"""
import os
import re
import sys

import checks

PAGES = ("docs/limitations.md", "docs/semantics.md")
MOST = 300
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
ROW = re.compile(r"^\|(.*)\|[ \t]*$", re.M)
BAR = re.compile(r"(?<!\\)\|")
ANCHOR = re.compile(r'<a id="[\w-]+"></a>')


def main() -> int:
    problems, cells = [], 0
    for page in PAGES:
        if not os.path.exists(os.path.join(checks.ROOT, page)):
            problems.append(f"{page}:1: is not there; scripts/check_tables.py names the pages whose tables it measures")
            continue
        text = FENCED.sub(lambda block: re.sub(r"[^\n]", " ", block.group(0)), checks.read(page))
        for row in ROW.finditer(text):
            for cell in BAR.split(row.group(1)):
                shown = ANCHOR.sub("", cell).strip()
                cells += 1
                if len(shown) > MOST:
                    problems.append(f"{page}:{checks.line_of(text, row.start())}: a cell of {len(shown)} characters, at most {MOST}: "
                                    f"\"{shown[:40]}...\"; leave the main sentence there, put the rest in a paragraph under the table")
    return checks.report(problems, f"{cells} cells")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a promise of docs/semantics.md has no number or no test, or a test names a promise that is not there.

A promise is a row of a table, `| C7. ... |`. A test names it with [C7]: a tag of Catch2, or in a comment of another test.
"""
import re
import sys

import checks

PAGE = "docs/semantics.md"
ROW = re.compile(r"^\| (?:([A-Z]\d+)\. )?(?=\S)(?!\| )(.*)", re.M)
NAMED = re.compile(r"\[([A-Z]\d+)\]")


def main() -> int:
    page = checks.read(PAGE)
    problems, promised = [], {}
    for found in ROW.finditer(page):
        line = checks.line_of(page, found.start())
        number = found.group(1)
        if number is None:
            problems.append(f"{PAGE}:{line}: a promise without a number; give it the next free one of its table")
        elif number in promised:
            problems.append(f"{PAGE}:{line}: {number} is there twice")
        else:
            promised[number] = line
    letters = {number[0] for number in promised}
    tested: dict = {}
    for path in checks.files("tests", suffixes=(".cpp", ".hpp", ".py")):
        text = checks.read(path)
        for found in NAMED.finditer(text):
            number = found.group(1)
            tested.setdefault(number, path)
            if number[0] in letters and number not in promised:
                problems.append(f"{path}:{checks.line_of(text, found.start())}: {PAGE} has no promise {number}")
    problems += [f"{PAGE}:{line}: no test names [{number}]; tag the one that fails when this is not true, or write it"
                 for number, line in promised.items() if number not in tested]
    return checks.report(problems, f"{len(promised)} promises")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on paths of one machine, non-ASCII in code, a TODO without an issue, odd ends of lines."""
import re
import sys

import checks

CODE = (".hpp", ".ipp", ".cpp", ".py", ".sh", ".cmake", ".toml", ".txt", ".in")
MACHINE = re.compile(r"(?<![\w$}.])/(?:work/|root/|tmp/w/|home/\w+/)")
TODO = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))")


def main() -> int:
    exceptions = checks.rules()["text_exceptions"]
    problems = []
    paths = checks.files("include", "src", "examples", "tests", "bench", "apps", "cmake", "scripts", "packaging", "modules", ".ci", "docs",
                         suffixes=(*CODE, ".md", ".expected", "setup", "quickstart", "test", "bench", "sim", "check", "fresh-machine", "run"))
    for path in paths:
        if path.startswith(("tests/checks/planted/", "tests/fuzz/corpus/")):
            continue
        try:
            text = checks.read(path)
        except UnicodeDecodeError:
            problems.append(f"{path}:1: is not UTF-8 text")
            continue
        code = path.endswith(CODE)
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path}:{number}"
            if any(path == file and part in line for file, part, _ in exceptions):
                continue
            if MACHINE.search(line) and path not in ("scripts/check_text.py", "scripts/layers.toml", "docs/fresh-machine.md"):
                problems.append(f"{where}: a path of one machine: {MACHINE.search(line).group(0)}; use a variable or a temporary folder")
            if code and not line.isascii():
                problems.append(f"{where}: non-ASCII text; write \\u escapes or plain words")
            if code and path != "scripts/check_text.py" and TODO.search(line):
                problems.append(f"{where}: {TODO.search(line).group(0)} without an issue; write TODO(#number) or do it")
            if line != line.rstrip() and not path.endswith((".expected", ".md")):
                problems.append(f"{where}: white space at the end of the line")
            if "\t" in line and path.endswith((".hpp", ".ipp", ".cpp", ".py")):
                problems.append(f"{where}: a tab; indent with four spaces")
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a name that has one place (Asio, threads, clocks, random sources) stands elsewhere; see layers.toml."""
import re
import sys

import checks


def main() -> int:
    problems = []
    doors = [(re.compile(door["pattern"]), door["allowed"], door["use"]) for door in checks.rules()["door"]]
    for path in checks.files("include", "src", "examples", "apps"):
        code = checks.code_only(checks.read(path))
        for pattern, allowed, use in doors:
            if checks.matches(path, allowed):
                continue
            for found in pattern.finditer(code):
                problems.append(f"{path}:{checks.line_of(code, found.start())}: {found.group(0).strip()} outside its door; use {use}")
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when no other header or file of bodies (.ipp) includes a header: it is an entry point, or it goes.

Umbrellas and src/ do not count, they name every header. What users include themselves, and nothing of ours does, is in
`entry_points` of layers.toml with a reason; a line there for a header that is included by now fails too.
"""
import sys

import checks


def main() -> int:
    entries = {name: why for name, why in checks.rules()["entry_points"]}
    included, lines = {}, 0
    ours = [(path, name) for path, name, layer in checks.headers() + checks.bodies() if layer is not None]
    for path, name in ours:
        for found in checks.INCLUDE.finditer(checks.code_only(checks.read(path), keep_includes=True)):
            if found.group(1) != f"skein/{name}":
                included.setdefault(found.group(1)[len("skein/"):], path)
    problems = []
    for path, name, layer in checks.headers():
        if layer is None:
            continue
        if name not in included and name not in entries:
            problems.append(f"{path}:1: nothing of skein includes it; use it, delete it, or name it in entry_points of layers.toml with a reason")
            lines += len(checks.read(path).splitlines())
        if name in included and name in entries:
            problems.append(f"scripts/layers.toml:1: entry_points: {name} is included by {included[name]}; take its line out")
    return checks.report(problems, f"{lines} lines that nothing includes" if lines else "")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when the committed single_include/ or src/ differs from what scripts/amalgamate.py makes of include/."""
import os
import sys

import amalgamate
import checks


def main() -> int:
    try:
        wanted = amalgamate.generate()
    except amalgamate.refused as why:
        return checks.report([str(why)])
    problems = []
    for path, text in wanted.items():
        if not os.path.exists(os.path.join(checks.ROOT, path)) or checks.read(path) != text:
            problems.append(f"{path}:1: differs from what include/ gives; run scripts/check --write")
    problems += [f"{path}:1: nothing in include/ asks for it; delete it" for path in checks.files("src") if path not in wanted]
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on words that codespell takes for misspelled, in pages, comments, names and messages; .codespellrc: which stay."""
import os
import re
import subprocess
import sys

import checks

LOOKED_AT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "include", "src", "examples", "tests", "apps", "bench", "scripts", "cmake",
             "packaging", ".ci")
FOUND = re.compile(r"^(?:\./)?(.+?:\d+): (.+) ==> (.+)$")


def main() -> int:
    tool = checks.tool("codespell")
    if not tool:
        return checks.without_tool("codespell")
    with_rules = checks.ROOT if os.path.exists(os.path.join(checks.ROOT, ".codespellrc")) else os.path.dirname(checks.HERE)
    paths = [path for path in LOOKED_AT if os.path.exists(os.path.join(checks.ROOT, path))]
    # Hidden files, too; 35: no warnings about bytes that are no text.
    done = subprocess.run([tool, "--config", os.path.join(with_rules, ".codespellrc"), "--quiet-level", "35", "--check-hidden", *paths],
                          cwd=checks.ROOT, capture_output=True, text=True, check=False)
    problems = []
    for line in done.stdout.splitlines():
        found = FOUND.match(line)
        if found:
            problems.append(f"{found[1]}: {found[2]} is misspelled; write {found[3]}, or give .codespellrc the word and a reason")
    if done.returncode not in (0, 65) or (done.returncode != 0 and not problems):
        problems.append(f".codespellrc:1: codespell ended with {done.returncode}: {done.stderr[-400:] or done.stdout[-400:]}")
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

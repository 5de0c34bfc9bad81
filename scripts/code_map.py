#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites the code map of docs/ARCHITECTURE.md: one line per public header, from its opening comment."""
import os
import re
import sys

import checks

BEGIN, END = "<!-- code map: written by scripts/code_map.py -->", "<!-- end of the code map -->"


def first_sentence(text: str) -> str:
    lines = []
    for line in text.splitlines()[1:40]:
        if line.startswith("#pragma"):
            continue
        if not line.startswith("//"):
            if lines:
                break
            continue
        words = line[2:].strip()
        if not words:
            break
        lines.append(words)
    # A full stop ends it when a capital letter follows: "e.g. this" goes on.
    return re.split(r"(?<=\.)\s+(?=[A-Z_`<])", " ".join(lines), maxsplit=1)[0].rstrip(".:;")


def code_map() -> str:
    lines = [BEGIN]
    layer = None
    order = checks.rules()["layers"]
    for path, name, of in sorted(checks.public_headers(), key=lambda entry: (order.index(entry[2]), entry[1])):
        if of != layer:
            layer = of
            lines += ["", f"### {layer}", "", "| header | what it is |", "|---|---|"]
        lines.append(f"| `{name}` | {first_sentence(checks.read(path)).replace('|', '/')} |")
    return "\n".join([*lines, "", END])


def main() -> int:
    path = os.path.join(checks.ROOT, "docs/ARCHITECTURE.md")
    if not os.path.exists(path):
        print("docs/ARCHITECTURE.md is missing")
        return 1
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if BEGIN not in text or END not in text:
        print(f"docs/ARCHITECTURE.md: the markers {BEGIN} and {END} are missing")
        return 1
    new = text[:text.index(BEGIN)] + code_map() + text[text.index(END) + len(END):]
    if new != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)
        print("wrote docs/ARCHITECTURE.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The headers by name: prints one line per public header, from its opening comment; --write writes links.

A page names a header as [`net/link.hpp`]. The links behind such names stand at the end of the page,
between two comments, and `code_map.py --write` (scripts/check --write calls it) writes them;
scripts/check_docs.py compares. The one line of each header is what the index of the documentation
site shows (scripts/api_pages.py); scripts/check_mirror.py fails where a header has none.
"""
import os
import re
import sys

import checks

BEGIN = "<!-- header links: written by scripts/code_map.py -->"
END = "<!-- end of the header links -->"
WRITE = "run scripts/check --write"
NAMED = re.compile(r"\[`((\w+)/((?:detail/)?\w+\.hpp))`\](?!\(|:)")


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
    order = checks.rules()["layers"]
    entries = sorted(checks.public_headers(), key=lambda entry: (order.index(entry[2]), entry[1]))
    return "\n".join(f"{name}: {first_sentence(checks.read(path))}" for path, name, _ in entries)


def named(text: str) -> list:
    """(position, name, layer, file in the layer) of the headers that a page names as links."""
    return [(found.start(), *found.groups()) for found in NAMED.finditer(text)]


def exists(layer: str, file: str) -> bool:
    """Of a layer that layers.toml does not have (yet) it is enough that some layer has the file."""
    order = checks.rules()["layers"]
    layers = [layer] if layer in order else order
    return any(os.path.exists(os.path.join(checks.ROOT, "include/skein", of, file)) for of in layers)


def with_links(path: str, text: str) -> str:
    """The page with the links that its names need; as it is where it has no place for them."""
    if BEGIN not in text or END not in text:
        return text
    up = "../" * path.count("/")
    names = sorted({name for _, name, _, _ in named(text)})
    links = "".join(f"[`{name}`]: {up}include/skein/{name}\n" for name in names)
    return text[:text.index(BEGIN)] + BEGIN + "\n\n" + links + "\n" + text[text.index(END):]


def problems(path: str, text: str) -> list:
    found = []
    for at, name, layer, file in named(text):
        where = f"{path}:{checks.line_of(text, at)}"
        if not exists(layer, file):
            found.append(f"{where}: there is no header {name}")
        if BEGIN not in text:
            found.append(f"{where}: nothing is behind [`{name}`]; end the page with the lines {BEGIN} "
                         f"and {END} and {WRITE}")
    if not found and with_links(path, text) != text:
        where = f"{path}:{checks.line_of(text, text.index(BEGIN))}"
        found.append(f"{where}: the links are not those of the headers that are named; {WRITE}")
    return found


def main() -> int:
    if "--write" not in sys.argv:
        print(code_map())
        return 0
    for path in checks.files("docs", suffixes=(".md",)):
        text = checks.read(path)
        new = with_links(path, text)
        if new != text:
            with open(os.path.join(checks.ROOT, path), "w", encoding="utf-8") as file:
                file.write(new)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

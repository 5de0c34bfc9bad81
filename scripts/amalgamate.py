#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes single_include/skein/{skein,train}.hpp: the library as two files, a pure function of include/.

skein.hpp is the torch-free part; train.hpp includes it and adds torch..train. Depth first, every header
once, a banner per file; includes of others stay where they are.
"""
import os
import re
import sys

import checks

LINE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(skein/[^>]+)>[^\n]*$")
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
BEGIN = """// SPDX-License-Identifier: Apache-2.0
#pragma once
// {title}
// Written by scripts/amalgamate.py from include/; do not edit. Never mix it with the split headers.
#if defined(SKEIN_VERSION_STRING) && !defined(SKEIN_SINGLE_INCLUDE)
#error "skein: do not mix single_include/ with the split headers in one program"
#endif
#ifndef SKEIN_SINGLE_INCLUDE
#define SKEIN_SINGLE_INCLUDE 1
#endif
#define SKEIN_AMALGAMATED 1
"""
END = "#undef SKEIN_AMALGAMATED\n"


class refused(Exception):
    pass


def append(name: str, seen: set, out: list) -> None:
    """The text of one header, after that of the headers it includes."""
    if name in seen:
        return
    seen.add(name)
    depth = 0
    text = checks.read("include/" + name)
    out.append(f"\n// ======== {name}\n")
    for number, line in enumerate(text.splitlines(), 1):
        condition = CONDITION.match(line)
        if condition:
            depth += 1 if condition.group(1) == "if" else -1
        found = LINE.match(line)
        if found:
            if depth > 0 and found.group(1) not in seen:
                raise refused(f"include/{name}:{number}: a skein include under #if cannot be put into one file")
            append(found.group(1), seen, out)
        elif line.strip() != "#pragma once" and line != "// SPDX-License-Identifier: Apache-2.0":
            out.append(line + "\n")


def generate() -> dict:
    """path -> content"""
    result = {}
    if not os.path.exists(os.path.join(checks.ROOT, "include/skein/skein.hpp")):
        return result
    out = [BEGIN.format(title="skein, the torch-free part, as one file.")]
    seen: set = set()
    append("skein/core/config.hpp", seen, out)        # the macros that change a layout come before everything
    append("skein/skein.hpp", seen, out)
    result["single_include/skein/skein.hpp"] = "".join(out) + END
    if os.path.exists(os.path.join(checks.ROOT, "include/skein/train.hpp")):
        out = [BEGIN.format(title="skein for training (needs LibTorch), beside skein.hpp of this folder.").replace(
            "#define SKEIN_AMALGAMATED 1\n", '#include "skein.hpp"\n#define SKEIN_AMALGAMATED 1\n')]
        append("skein/train.hpp", seen, out)
        result["single_include/skein/train.hpp"] = "".join(out) + END
    return result


def main() -> int:
    try:
        wanted = generate()
    except refused as why:
        print(why)
        return 1
    for path, text in wanted.items():
        full = os.path.join(checks.ROOT, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        old = open(full, encoding="utf-8").read() if os.path.exists(full) else ""
        if old != text:
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

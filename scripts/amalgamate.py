#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# REUSE-IgnoreStart: the licence lines below are those of files that this one writes or looks at.
"""Writes what is a pure function of include/: single_include/ and the compiled form's sources in src/.

single_include/skein/skein.hpp is the torch-free part as one file; train.hpp includes it and adds torch..train.
Depth first, every header and its bodies (.ipp) once, a banner per file; includes of others stay where they are.

src/<layer>.cpp compiles the bodies of one layer once; src/skein.cpp and src/skein_train.cpp are all of them,
for those who build without CMake, but for those that link further libraries (own_sources in layers.toml).
"""
import os
import re
import sys

import checks
import needs_torch

LINE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(skein/[^>]+)>[^\n]*$")
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
BODIES = "#if SKEIN_HEADER_ONLY"
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
#if defined(SKEIN_COMPILED)
#error "skein: single_include/ is the header-only form: compile without SKEIN_COMPILED, link skein::header_only"
#endif
"""
END = "#undef SKEIN_AMALGAMATED\n"


class refused(Exception):
    pass


def append(name: str, seen: set, out: list) -> None:
    """The text of one header, after that of the headers it includes."""
    if name in seen:
        return
    seen.add(name)
    depth, bodies, away = 0, False, False
    text = checks.read("include/" + name)
    out.append(f"\n// ======== {name}\n")
    for number, line in enumerate(text.splitlines(), 1):
        if line == BODIES:            # the bodies belong to this form, without a condition
            bodies = True
            continue
        if bodies and line == "#endif":
            bodies = False
            continue
        condition = CONDITION.match(line)
        if condition:
            depth += 1 if condition.group(1) == "if" else -1
        found = LINE.match(line)
        if found:
            if depth > 0 and found.group(1) not in seen:
                raise refused(f"include/{name}:{number}: a skein include under #if cannot be put into one file")
            if found.group(1) not in seen:
                append(found.group(1), seen, out)
                away = True
        elif line.strip() != "#pragma once" and line != "// SPDX-License-Identifier: Apache-2.0":
            if away and line.strip():       # text after an inlined include is this header's again
                out.append(f"\n// ======== {name}, continued\n")
                away = False
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
    return {**result, **sources()}


SOURCE = """// SPDX-License-Identifier: Apache-2.0
// {title}
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif
"""


def sources() -> dict:
    """path -> content of the compiled form's files."""
    groups: dict = {}
    own = checks.rules().get("own_sources", [])
    for path in checks.files("include/skein", suffixes=(".ipp",)):
        name = path[len("include/"):]
        layer = name.split("/")[1]
        with_torch = any(needs_torch.reaches(os.path.join(checks.ROOT, "include", part)) for part in (name, *twins(name)))
        if layer in ("train", "torch") and not with_torch:
            layer = "train_torch_free"
        elif with_torch:
            layer = "train"
        layer = next((source for source, patterns, _ in own if checks.matches(name[len("skein/"):], patterns)), layer)
        groups.setdefault(layer, []).append(name)
    result = {}
    for layer, names in groups.items():
        title = {"train": "The bodies of torch, dist and train that need LibTorch, compiled once.",
                 "train_torch_free": "The bodies of train that need no LibTorch, compiled once.",
                 **{source: f"Compiled once, in a library of its own: {why}." for source, _, why in own}}.get(layer, f"The bodies of the layer {layer}, compiled once.")
        lines = sorted({f"#include <{part}>" for name in names for part in twins(name)}) + [""] + [f"#include <{name}>" for name in sorted(names)]
        result[f"src/{layer}.cpp"] = SOURCE.format(title=title) + "\n" + "\n".join(lines) + "\n"
    order = [layer for layer in (*checks.rules()["layers"], "train_torch_free") if layer in groups and layer not in ("train", "sim")]
    if order:
        result["src/skein.cpp"] = (SOURCE.format(title="The torch-free part in its compiled form as one file, for builds without CMake.") + "\n" +
                                   "".join(f'#include "{layer}.cpp"\n' for layer in order))
    if "train" in groups:
        result["src/skein_train.cpp"] = (SOURCE.format(title="The part that needs LibTorch, beside skein.cpp, for builds without CMake.") +
                                         '\n#include "train.cpp"\n')
    return result


def twins(name: str) -> list:
    """The headers that an .ipp belongs to: those of its name, in its layer's folder and in detail/."""
    found = [name.replace("/detail/", "/")[:-4] + ".hpp", name[:-4] + ".hpp"]
    return [path for path in found if os.path.exists(os.path.join(checks.ROOT, "include", path))]


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

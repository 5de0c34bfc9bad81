#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# REUSE-IgnoreStart: the licence lines below are those of files that this one writes or looks at.
"""Fails when a public header lacks its test file, its one line for the index or its place in the umbrella.

check_mirror.py --write regenerates the umbrellas: include/skein/<layer>.hpp (every public header of the
folder), skein.hpp (the torch-free layers that every program needs) and train.hpp (skein.hpp, report, torch..train).
"""
import os
import sys

import checks
import code_map

RULES = checks.rules()


def order(name: str) -> tuple:
    """As clang-format sorts; the macros that change a layout come first."""
    return (name != "core/config.hpp", name)


def text_of(title: list, includes: list) -> str:
    lines = ["// SPDX-License-Identifier: Apache-2.0", "#pragma once", *[f"// {line}" for line in title],
             "// Written by scripts/check_mirror.py --write.", "", *[f"#include <skein/{name}>" for name in sorted(includes, key=order)], ""]
    return "\n".join(lines)


def umbrellas() -> dict:
    """path -> content, for every layer that has a public header."""
    left_out = {path for path, _ in RULES["umbrella_exceptions"]}
    found = {}
    present = []
    for layer in RULES["layers"]:
        names = [name for _, name, of in checks.public_headers() if of == layer and name not in left_out]
        if not names:
            continue
        present.append(layer)
        if layer == "train":
            low = [f"{other}.hpp" for other in present if other in ("report", "metrics", "torch", "dist")]
            found["include/skein/train.hpp"] = text_of(
                ["Everything for training: the torch-free part (skein.hpp), metrics, torch, dist, the Trainer and its data.",
                 "Needs LibTorch; link skein::train."], ["skein.hpp", *low, *names])
        else:
            found[f"include/skein/{layer}.hpp"] = text_of([f"Every public header of the layer {layer}."], names)
    free = [f"{layer}.hpp" for layer in present if layer not in ("data", "report", "metrics") and RULES["layers"].index(layer) < RULES["layers"].index("torch")]
    if free:
        found["include/skein/skein.hpp"] = text_of(
            ["The torch-free part of skein: tasks, bytes, sockets, remote functions and actors, launching.",
             "Needs no LibTorch; link skein::runtime."], free)
    return found


def main() -> int:
    wanted = umbrellas()
    if "--write" in sys.argv:
        for path, text in wanted.items():
            full = os.path.join(checks.ROOT, path)
            old = open(full, encoding="utf-8").read() if os.path.exists(full) else ""
            if old != text:
                with open(full, "w", encoding="ascii") as file:
                    file.write(text)
                print(f"wrote {path}")
        return 0
    problems = []
    for path, text in wanted.items():
        if not os.path.exists(os.path.join(checks.ROOT, path)) or checks.read(path) != text:
            problems.append(f"{path}:1: is not what its folder holds; run scripts/check --write")
    excepted = {path for path, _ in RULES["mirror_exceptions"]}
    for path, name, layer in checks.public_headers():
        test = f"tests/{layer}/{os.path.basename(name)[:-4]}_test.cpp"
        if name not in excepted and not os.path.exists(os.path.join(checks.ROOT, test)):
            problems.append(f"{path}:1: has no test file {test}")
        if not code_map.first_sentence(checks.read(path)):
            problems.append(f"{path}:1: its opening comment has no sentence that the index of headers could show")
    return checks.report(problems, f"{len(checks.public_headers())} public headers, each with its test" if not problems else "")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""needs_torch.py FILE...: prints, as a CMake list, the files whose includes reach LibTorch.

Follows <skein/...> through include/ (and quoted includes beside the file); a file reaches LibTorch when
it, or a header it reaches, includes <torch/...>, <ATen/...> or <c10/...>.
"""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "include")
INCLUDE = re.compile(r'^\s*#\s*include\s*(<([^>]+)>|"([^"]+)")', re.M)
DIRECT = ("torch/", "ATen/", "c10/")
known = {}


def reaches(path: str) -> bool:
    path = os.path.normpath(path)
    if path in known:
        return known[path]
    known[path] = False  # a cycle reaches nothing new
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return False
    for _, system, quoted in INCLUDE.findall(text):
        name = system or quoted
        if system and name.startswith(DIRECT):
            known[path] = True
            break
        target = os.path.join(ROOT, name) if name.startswith("skein/") else os.path.join(os.path.dirname(path), name)
        if (quoted or name.startswith("skein/")) and reaches(target):
            known[path] = True
            break
    return known[path]


if __name__ == "__main__":
    print(";".join(path for path in sys.argv[1:] if reaches(path)), end="")

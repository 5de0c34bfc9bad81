#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""needs_torch.py FILE...: prints, as a CMake list, the files whose includes reach LibTorch.

Follows the includes that lie in include/, in the top folder, in tests/ or beside the file; a file reaches
LibTorch when it, or a header it reaches, includes <torch/...>, <ATen/...> or <c10/...>.
"""
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = (os.path.join(TOP, "include"), TOP, os.path.join(TOP, "tests"))  # where programs of ours look
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
        if any(reaches(os.path.join(folder, name)) for folder in (*FOLDERS, os.path.dirname(path)) if os.path.exists(os.path.join(folder, name))):
            known[path] = True
            break
    return known[path]


if __name__ == "__main__":
    print(";".join(path for path in sys.argv[1:] if reaches(path)), end="")

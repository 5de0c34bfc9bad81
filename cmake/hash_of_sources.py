#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hash_of_sources.py OUT FOLDER...: a C++ file with a hash over the names and bytes of the C++ files below the folders."""
import hashlib
import os
import sys


def hash_of(folders: list) -> str:
    whole = hashlib.sha256()
    for folder in folders:
        names = sorted(os.path.join(at, name) for at, _, files in os.walk(folder) for name in files if name.endswith((".hpp", ".ipp", ".cpp")))
        if not names:
            sys.exit(f"error: hash_of_sources.py: no file below {folder}")
        for name in names:
            with open(name, "rb") as file:
                whole.update(f"{name}\0{hashlib.sha256(file.read()).hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def main() -> int:
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[1])), exist_ok=True)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("// made by cmake/hash_of_sources.py\nnamespace skein::sim {\nextern const char* const sources;\n"
                  f'const char* const sources = "{hash_of(sys.argv[2:])}";\n}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""headers_alone.py torch-free|torch COMPILER [INCLUDE...] [--after INCLUDE...]: each public header compiles alone.

Only the front end runs (-fsyntax-only), in the compiled form; every header is included twice, so that its guard is
seen to work. Prints the errors of those that do not compile and ends with 1.
"""
import concurrent.futures
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, "scripts"))
KIND, COMPILER, FOLDERS = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.argv = sys.argv[:1]     # what the checks read is the tree they lie in
import checks               # noqa: E402
import needs_torch          # noqa: E402

AFTER = FOLDERS[FOLDERS.index("--after") + 1:] if "--after" in FOLDERS else []
BEFORE = FOLDERS[:FOLDERS.index("--after")] if "--after" in FOLDERS else FOLDERS
FLAGS = ["-std=c++20", "-fsyntax-only", "-pthread", "-DSKEIN_COMPILED", "-Wall", "-Wextra", "-Wno-unused-const-variable",
         "-Werror", f"-I{TOP}/include", *(f"-isystem{folder}" for folder in BEFORE if folder != "/usr/include"),
         *(word for folder in AFTER for word in ("-idirafter", folder)), "-x", "c++", "-"]


def alone(name: str) -> str:
    text = f"#include <skein/{name}>\n#include <skein/{name}>\n"
    done = subprocess.run([COMPILER, *FLAGS], input=text, capture_output=True, text=True, check=False)
    return f"{name} does not compile alone:\n{done.stderr[:3000]}" if done.returncode else ""


def main() -> int:
    names = [name for path, name, _ in checks.public_headers()
             if needs_torch.reaches(os.path.join(checks.ROOT, path)) == (KIND == "torch")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() if KIND != "torch" else 1) as pool:
        problems = [text for text in pool.map(alone, names) if text]
    print(*problems, f"{len(names) - len(problems)} of {len(names)} headers compile alone", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when modules/skein.cppm exports not exactly the public names of skein.hpp.

Public is what clang finds in skein's namespaces, in the compiled form, when the name stands in a public header and in
no namespace detail. Template parameters begin with a capital or are one letter; nothing public does. Operators count
when their declaration begins a line; those of a class are indented.
`check_modules.py --write` writes the file. Without clang it is skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import checks
import compiling

PATH = "modules/skein.cppm"
NAMESPACE = re.compile(r"\bnamespace\s+([a-z_][a-z0-9_:]*)\s*\{")
EXPORTED = re.compile(r"^\s*using\s+(skein::[^;]+);", re.M)
OPERATOR = re.compile(r"^\S[^\n]*\b(operator\s*[^\s\w(]+)\s*\(", re.M)
NO_MEMBER = re.compile(r"error: no member named '([^']+)' in namespace '([^']+)'")
WORD = re.compile(r"[A-Za-z_]\w*")
HEAD = """// SPDX-License-Identifier: Apache-2.0
// skein as a C++20 module: the public names of skein.hpp. Written by scripts/check_modules.py --write.
//
//     import skein;
//
// Include the standard headers that a file uses itself, before the import. Macros do not travel: core/check.hpp may be
// included beside the import. CMake: link skein::module.
module;
#include <skein/skein.hpp>

#include <coroutine>

export module skein;

// Without these a file with a coroutine would have to include <coroutine>.
export namespace std {
using std::coroutine_handle;
using std::coroutine_traits;
using std::suspend_always;
using std::suspend_never;
} // namespace std
"""


def clang() -> str:
    for name in (os.environ.get("CXX", ""), "clang++-19", "clang++"):
        if name and "clang" in os.path.basename(name) and shutil.which(name):
            return name
    return ""


def namespaces_and_words() -> tuple:
    """All names of namespaces of ours, and all words of the public headers' code."""
    spaces, words = set(), set()
    for path, name, _ in checks.headers() + checks.bodies():
        code = checks.code_only(checks.read(path))
        spaces.update(part for found in NAMESPACE.findall(code) for part in found.split("::"))
        if "/detail/" not in name:
            words.update(WORD.findall(code) + OPERATOR.findall(code))
    return spaces, words


def public_names(compiler: str) -> set:
    with tempfile.TemporaryDirectory(prefix="skein-modules-") as folder:
        source = os.path.join(folder, "all.cpp")
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <skein/skein.hpp>\n")
        done = subprocess.run([compiler, "-std=c++20", "-pthread", "-w", *compiling.forms()["compiled"], f"-I{checks.ROOT}/include", "-fsyntax-only",
                               "-Xclang", "-ast-list", "-Xclang", "-ast-dump-filter=skein", source], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{compiler} does not compile skein.hpp\n{done.stderr[:2000]}")
    spaces, words = namespaces_and_words()
    found = set()
    for name in set(done.stdout.split("\n")):
        *inside, last = name.split("::")
        if not inside or inside[0] != "skein" or "detail" in inside or last in spaces or not spaces.issuperset(inside):
            continue
        if last in words and len(last) > 1 and last[0].islower():
            found.add(name)
    return found - no_members(compiler, found)


def no_members(compiler: str, names: set) -> set:
    """Those of the names that nobody can export: a parameter in the type of a function counts as one of its namespace for clang's list."""
    with tempfile.TemporaryDirectory(prefix="skein-modules-") as folder:
        source = os.path.join(folder, "names.cpp")
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <skein/skein.hpp>\nnamespace checked {\n" + "".join(f"using {name};\n" for name in sorted(names)) + "}\n")
        done = subprocess.run([compiler, "-std=c++20", "-pthread", "-w", "-ferror-limit=0", *compiling.forms()["compiled"], f"-I{checks.ROOT}/include", "-fsyntax-only",
                               source], capture_output=True, text=True, check=False)
    return {f"{space}::{name}" for name, space in NO_MEMBER.findall(done.stderr)}


def text_of(names: set) -> str:
    groups: dict = {}
    for name in sorted(names):
        groups.setdefault(name.rsplit("::", 1)[0], []).append(name)
    text = HEAD
    for space, members in groups.items():
        text += f"\nexport namespace {space} {{\n" + "".join(f"using {name};\n" for name in members) + f"}} // namespace {space}\n"
    return text


def main() -> int:
    compiler = clang()
    if not compiler:
        return checks.report([], "skipped: no clang to ask for the names")
    public = public_names(compiler)
    full = os.path.join(checks.ROOT, PATH)
    if "--write" in sys.argv:
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="ascii") as file:
            file.write(text_of(public))
        return 0
    if not os.path.exists(full):
        return checks.report([f"{PATH}:1: is missing; write it with scripts/check --write"])
    text = checks.read(PATH)
    exported = {found.group(1): checks.line_of(text, found.start(1)) for found in EXPORTED.finditer(text)}
    problems = [f"{PATH}:1: {name} is public and not exported; write the file with scripts/check --write, or move the name into a namespace detail"
                for name in sorted(public - set(exported))]
    problems += [f"{PATH}:{line}: {name} is exported and not public; write the file with scripts/check --write"
                 for name, line in sorted(exported.items(), key=lambda entry: entry[1]) if name not in public]
    return checks.report(problems, f"{len(exported)} names exported")


if __name__ == "__main__":
    sys.exit(main())

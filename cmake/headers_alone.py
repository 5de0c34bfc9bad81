#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""headers_alone.py torch-free|torch|header-only COMPILER [INCLUDE...] [--after INCLUDE...]: each public header compiles alone.

Only the front end runs (-fsyntax-only), in the compiled form; every header is included twice, so that its guard is
seen to work. Prints the errors of those that do not compile and ends with 1. header-only: those without LibTorch in that
form, where each shows its bodies at its end, so that the order of includes matters; that takes minutes.

Most of the time would go into what the headers include, again and again. So some sets of headers, the hubs, are
precompiled, and a header is compiled behind the largest hub of which it includes every part itself, directly or not:
that hub gives it nothing that it would not have alone.
"""
import concurrent.futures
import functools
import os
import re
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, "scripts"))
KIND, COMPILER, FOLDERS = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.argv = sys.argv[:1]     # what the checks read is the tree they lie in
import checks               # noqa: E402
import needs_torch          # noqa: E402

AFTER = FOLDERS[FOLDERS.index("--after") + 1:] if "--after" in FOLDERS else []
BEFORE = FOLDERS[:FOLDERS.index("--after")] if "--after" in FOLDERS else FOLDERS
HEADER_ONLY = KIND == "header-only"
FLAGS = ["-std=c++20", "-fsyntax-only", "-pthread", *([] if HEADER_ONLY else ["-DSKEIN_COMPILED"]), "-Wall", "-Wextra", "-Wno-unused-const-variable",
         "-Werror", f"-I{TOP}/include", *(f"-isystem{folder}" for folder in BEFORE if folder != "/usr/include"),
         *(word for folder in AFTER for word in ("-idirafter", folder)), "-x", "c++", "-"]


HUBS = 8
# What takes long to read, in tenths of a second; any other header is one.
LONG = {"fmt/format.h": 12, "fmt/core.h": 9, "filesystem": 11, "chrono": 10, "thread": 10, "memory": 9, "functional": 7, "mutex": 6,
        "atomic": 6, "string": 6, "vector": 4, "unordered_map": 4, "algorithm": 4, "map": 3}


def weight(hub: frozenset) -> int:
    return sum(LONG.get(part, 1) for part in hub)


@functools.cache
def reached(name: str) -> frozenset:
    """Every header that <skein/name> includes, other libraries' (unopened) among them."""
    with open(os.path.join(TOP, "include", "skein", name), encoding="utf-8") as file:
        direct = re.findall(r"^#include <([^>]+(?<!\.ipp))>", file.read(), re.M)   # .ipp: for the header-only form
    found = set(direct)
    for header in direct:
        if header.startswith("skein/"):
            found |= reached(header.removeprefix("skein/"))
    return frozenset(found)


def behind(hubs: list, name: str) -> frozenset:
    """The largest hub whose parts a header all includes, or nothing."""
    return max((hub for hub in hubs if hub <= reached(name)), key=weight, default=frozenset())


def choose_hubs(names: list) -> list:
    """Those that spare the others most."""
    def others(name: str) -> frozenset:
        return frozenset(part for part in reached(name) if not part.startswith("skein/"))
    # In the header-only form a hub with headers of skein would bring bodies that come too early otherwise.
    candidates = set() if HEADER_ONLY else {reached(name) | {f"skein/{name}"} for name in names}
    candidates |= {others(one) & others(two) for one in names for two in names}
    have = {name: 0 for name in names}
    hubs = []
    for _ in range(HUBS):
        def spared(hub: frozenset) -> int:
            return sum(max(0, weight(hub) - have[name]) for name in names if hub <= reached(name))
        hubs.append(max(sorted(candidates, key=sorted), key=spared))
        have = {name: weight(behind(hubs, name)) for name in names}
    return hubs


def run(flags: list, text: str) -> str:
    done = subprocess.run([COMPILER, *flags], input=text, capture_output=True, text=True, check=False)
    return done.stderr[:3000] if done.returncode else ""


class Alone:
    def __init__(self, names: list, folder: str, workers: int) -> None:
        self.names, self.workers = names, workers
        self.hubs = choose_hubs(names) if len(names) > 2 * HUBS else []
        self.path = {hub: os.path.join(folder, f"hub{number}.hpp") for number, hub in enumerate(self.hubs)}
        self.is_clang = "clang" in subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=False).stdout

    def precompile(self, hub: frozenset) -> str:
        with open(self.path[hub], "w", encoding="ascii") as file:
            file.writelines(f"#include <{part}>\n" for part in sorted(hub))
        made = self.path[hub] + (".pch" if self.is_clang else ".gch")
        flags = [flag for flag in FLAGS[:-3] if flag != "-fsyntax-only"]
        return run([*flags, "-Wno-pragma-once-outside-header", "-x", "c++-header", self.path[hub], "-o", made], "")

    def one(self, name: str) -> str:
        hub = behind(self.hubs, name)
        with_hub = [] if not hub else ["-include-pch", self.path[hub] + ".pch"] if self.is_clang else ["-include", self.path[hub]]
        wrong = run([*with_hub, *FLAGS], f"#include <skein/{name}>\n#include <skein/{name}>\n")
        return f"{name} does not compile alone:\n{wrong}" if wrong else ""

    def problems(self) -> list:
        with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
            # One that does not compile as a whole is left out; its headers are told below.
            self.hubs = [hub for hub, wrong in zip(self.hubs, list(pool.map(self.precompile, self.hubs))) if not wrong]
            return [text for text in pool.map(self.one, self.names) if text]


def main() -> int:
    names = [name for path, name, _ in checks.public_headers()
             if needs_torch.reaches(os.path.join(checks.ROOT, path)) == (KIND == "torch")]
    with tempfile.TemporaryDirectory(prefix="skein-headers-") as folder:
        problems = Alone(names, folder, (os.cpu_count() or 1) if KIND != "torch" else 1).problems()
    print(*problems, f"{len(names) - len(problems)} of {len(names)} headers compile alone", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

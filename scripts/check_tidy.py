#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when clang-tidy 19 has something to say about a file that changed; .clang-tidy says what it looks for.

Changed is what differs from the merge base with main (SKEIN_TIDY_BASE names another commit), on main itself from the
commit before; files that git does not know yet count. Headers and bodies are looked at through the file of src/ that
compiles their layer, one compilation each. SKEIN_TIDY_SECONDS (0: none) limits the time: what is left over is named,
and does not fail; scripts/check tidy has no limit. As one of all checks nothing is begun after 30 s, a file that
takes 90 s is left over, too, and none with LibTorch is begun: they take one to three minutes each.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time

import checks
import compiling

SOURCES = (".hpp", ".ipp", ".cpp")
LOOKED_AT = ("include/", "src/", "examples/", "tests/", "bench/", "apps/")
NOT = ("src/skein", "tests/compile_fail/", "tests/checks/", "tests/consume/", "single_include/")
WARNING = re.compile(r"^(.+?):(\d+):\d+: (?:warning|error): (.*)$", re.M)


def git(*words: str) -> list:
    done = subprocess.run(["git", "-C", checks.ROOT, *words], capture_output=True, text=True, check=False)
    return done.stdout.split("\n") if done.returncode == 0 else []


def changed_files() -> list:
    base = os.environ.get("SKEIN_TIDY_BASE", "")
    head = "".join(git("rev-parse", "HEAD")).strip()
    for name in () if base else ("origin/main", "main"):
        base = base or "".join(git("merge-base", "HEAD", name)).strip()
    if not base or base == head:
        base = "".join(git("rev-parse", "HEAD~1")).strip()
    if not base:
        return []
    names = git("diff", "--name-only", "--diff-filter=d", base) + git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in names if name.endswith(SOURCES) and name.startswith(LOOKED_AT) and not name.startswith(NOT)
                   and os.path.exists(os.path.join(checks.ROOT, name))})


def compilations(changed: list) -> dict:
    """file to compile -> the changed files that are seen through it."""
    found: dict = {}
    layers = os.path.join(checks.ROOT, "src")
    for name in changed:
        if name.endswith(".cpp"):
            found.setdefault(name, []).append(name)
            continue
        parts = name.split("/")
        if not name.startswith("include/skein/") or len(parts) < 4:
            continue    # umbrellas and helpers of tests: seen through what includes them
        below, through = f"skein/{'/'.join(parts[2:])}", []
        for source in sorted(os.listdir(layers)) if os.path.isdir(layers) else ():
            # skein.cpp and skein_train.cpp only include the others.
            if source.startswith("skein") or not source.endswith(".cpp"):
                continue
            if source[:-4].startswith(parts[2]) and (len(parts) > 4 or below in checks.read(f"src/{source}") or source[:-4] == parts[2]):
                through.append(f"src/{source}")
        if not through and name.endswith(".hpp"):
            through = [name]    # nothing but templates: it compiles alone
        for source in through:
            found.setdefault(source, []).append(name)
    return found


def command(tool: str, source: str, seen: list) -> list:
    wanted = "|".join(re.escape(name) for name in seen)
    alone = ["-xc++", "-Wno-pragma-once-outside-header"] if source.endswith(".hpp") else []
    return [tool, "--quiet", f"--header-filter=({wanted})$", source, "--", *alone, "-std=c++20", "-pthread", "-DSKEIN_COMPILED",
            f"-I{checks.ROOT}/include", f"-I{checks.ROOT}", f"-I{checks.ROOT}/tests", *compiling.libtorch_flags()]


def with_torch(source: str) -> bool:
    return "train" in source or "torch" in source


def main() -> int:
    tool = shutil.which("clang-tidy-19") or shutil.which("clang-tidy")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout if tool else ""
    if " 19." not in version:
        return checks.report([], "skipped: clang-tidy 19 is not here")
    limit = float(os.environ.get("SKEIN_TIDY_SECONDS", "30"))
    changed = changed_files()
    begin, problems, left, count = time.monotonic(), {}, [], 0

    def one(item):
        if limit and (time.monotonic() - begin > limit or with_torch(item[0])):
            return item[0], None
        try:
            return item[0], subprocess.run(command(tool, *item), capture_output=True, text=True, check=False, cwd=checks.ROOT,
                                           timeout=3 * limit if limit else None)
        except subprocess.TimeoutExpired:
            return item[0], None

    # Those with LibTorch last: the most files for the time.
    order = sorted(compilations(changed).items(), key=lambda item: (with_torch(item[0]), len(item[1]), item[0]))
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SKEIN_JOBS") or os.cpu_count() or 1)) as pool:
        results = list(pool.map(one, order))
    for source, done in results:
        if done is None:
            left.append(source)
            continue
        count += 1
        for path, line, text in WARNING.findall(done.stdout):
            name = os.path.relpath(os.path.join(checks.ROOT, path), checks.ROOT)
            if name.startswith(".."):
                continue    # the analyzer follows calls into other people's headers
            problems[f"{name}:{line}: {text}"] = None
        if done.returncode != 0 and not WARNING.search(done.stdout):
            problems[f"{source}:1: clang-tidy ended with {done.returncode}: {done.stderr[-400:]}"] = None
    text = f"{len(changed)} changed files, {count} compilations" + (f"; no time left for {' '.join(left)}" if left else "")
    return checks.report(list(problems), text)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# REUSE-IgnoreStart: the licence lines below are those of files that this one writes or looks at.
"""Fails when a header, a file of bodies (.ipp) or a function is too long, or lacks its opening lines; prints the sizes.

Every file starts with its SPDX line, #pragma once and an opening comment. A function counts from the first line of
its signature to its closing brace. A .ipp has no anonymous namespace and no static function: in the header-only form
it is a header like any other. `check_headers.py --functions N` prints every function of more than N lines.
"""
import re
import statistics
import sys

import checks

HEADER_LIMIT, BODIES_LIMIT, FUNCTION_LIMIT, MEDIAN_LIMIT = 450, 600, 60, 120
CONTAINER = re.compile(r"\b(?:namespace|class|struct|union|enum|concept)\b|\bextern\s*\"")
TEMPLATE = re.compile(r"\btemplate\s*<")
BEFORE_BODY = re.compile(r"(?:\w+(?:<[^<>]*>)?::)*~?(?:operator\s*(?:\(\s*\)|[^\s\w(]+|\s\w[\w:<>&* ]*)|[A-Za-z_]\w*)\s*\(")


def without_template_head(head: str) -> str:
    """`template <class T> void f(...)` without its parameter list, whose `class` is no container."""
    while True:
        found = TEMPLATE.search(head)
        if not found:
            return head
        depth, at = 0, found.end() - 1
        while at < len(head):
            depth += (head[at] == "<") - (head[at] == ">" and head[at - 1] != "-")
            if depth == 0:
                break
            at += 1
        head = head[:found.start()] + " " + head[at + 1:]


def functions(text: str) -> list:
    """(first line, lines, name) of every function body outside other functions."""
    code = checks.without_directives(checks.code_only(text))
    found, stack, head_start, held = [], [], 0, None
    for match in re.finditer(r"[{};]", code):
        at, token = match.start(), match.group(0)
        inside = any(kind == "function" for kind, _ in stack)
        if token == "{":
            head = code[head_start:at]
            kind = "other"
            if not inside:
                bare = without_template_head(head)
                named = BEFORE_BODY.search(bare)
                # `struct x : y<decltype(f())> {` is a container; `struct x f() {` does not occur here.
                if CONTAINER.search(bare.split("(")[0]):
                    kind = "container"
                elif named or head.lstrip().startswith(","):
                    kind = "function"
                    start = head_start + len(head) - len(head.lstrip())
                    if head.lstrip().startswith(",") and held is not None:    # the rest of a list of initialisers
                        found.pop()
                        start, name = held
                    else:
                        name = named.group(0)[:-1].strip() if named else "?"
                    stack.append((kind, (start, name)))
                    head_start = match.end()
                    continue
            stack.append((kind, None))
        elif token == "}" and stack:
            kind, what = stack.pop()
            held = None
            if kind == "function" and not any(other == "function" for other, _ in stack):
                first = checks.line_of(code, what[0])
                found.append((first, checks.line_of(code, at) - first + 1, what[1]))
                held = what
        elif token == ";":
            held = None
        head_start = match.end()
        if token != "}":
            head_start = match.end()
    return found


def opening_problems(path: str, lines: list) -> list:
    problems = []
    if not lines or lines[0] != "// SPDX-License-Identifier: Apache-2.0":
        problems.append(f"{path}:1: the first line must be // SPDX-License-Identifier: Apache-2.0")
    if "#pragma once" not in lines[:30]:
        problems.append(f"{path}:2: no #pragma once near the top")
    if not any(line.startswith("//") for line in lines[1:14]):
        problems.append(f"{path}:3: no opening comment: which problem, the idea, how to use it")
    return problems


def body_problems(path: str, text: str) -> list:
    """What makes a file of bodies unfit for the header-only form."""
    problems, code = [], checks.code_only(text)
    for found in re.finditer(r"^[ \t]*namespace\s*\{", code, re.M):
        problems.append(f"{path}:{checks.line_of(code, found.start())}: an anonymous namespace; use namespace detail and SKEIN_INLINE")
    for found in re.finditer(r"^static\s[^;={]*\(", code, re.M):
        problems.append(f"{path}:{checks.line_of(code, found.start())}: a static function; use namespace detail and SKEIN_INLINE")
    return problems


def summary(what: str, sizes: list) -> str:
    sizes.sort()
    counts = [size for size, _ in sizes]
    return (f"{len(counts)} {what}: median {statistics.median(counts):.0f} lines, p90 {counts[int(len(counts) * 0.9)]}, "
            f"largest {counts[-1]} ({sizes[-1][1]}), {sum(counts)} in all")


def main() -> int:
    rules = checks.rules()
    long_files = {path for path, _ in rules["size_exceptions"]}
    long_functions = {(path, name) for path, name, _ in rules["function_exceptions"]}
    shown = int(sys.argv[sys.argv.index("--functions") + 1]) if "--functions" in sys.argv else None
    problems, sizes, lengths = [], {".hpp": [], ".ipp": []}, []
    for path, name, layer in checks.headers() + checks.bodies():
        text = checks.read(path)
        lines, kind = text.splitlines(), path[-4:]
        limit = HEADER_LIMIT if kind == ".hpp" else BODIES_LIMIT
        if layer is not None:
            sizes[kind].append((len(lines), name))
        if len(lines) > limit and name not in long_files:
            problems.append(f"{path}:{limit}: {len(lines)} lines, the limit is {limit}; split it by concept, or put machinery into detail/")
        problems += opening_problems(path, lines)
        if kind == ".ipp":
            problems += body_problems(path, text)
        for first, length, function in functions(text):
            lengths.append((length, f"{path}:{first}: {function}"))
            if length > FUNCTION_LIMIT and (name, function) not in long_functions:
                problems.append(f"{path}:{first}: {function} has {length} lines, the limit is {FUNCTION_LIMIT}; cut it into steps with names")
    median = statistics.median([size for size, _ in sizes[".hpp"]]) if sizes[".hpp"] else 0
    if median > MEDIAN_LIMIT:
        problems.append(f"include/skein:1: the median header has {median:.0f} lines, the limit is {MEDIAN_LIMIT}")
    if shown is not None:
        print("\n".join(f"{where} {length}" for length, where in sorted(lengths, reverse=True) if length > shown))
    texts = [summary(what, sizes[kind]) for kind, what in ((".hpp", "headers"), (".ipp", "files of bodies")) if sizes[kind]]
    return checks.report(problems, "\n   ".join(texts) or "no headers")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a statement with co_await or co_yield creates what g++ 12 destroys twice: name it, then await or yield it.

    scripts/check_await.py my_src/          your own sources: files and folders
    scripts/check_await.py                  skein's own tree

Looked for in the same statement as a co_await or co_yield: a braced initialiser, a lambda that captures by value, a
conditional operator; and an assertion of Catch2, whose __builtin_constant_p makes g++ await twice. A line that is harmless says why: `// await-ok: reason`. It reads words, not types:
an aggregate that is initialised with parentheses, `point(1, 2)`, is as bad and is not found.
"""
import argparse
import os
import re
import sys

import checks

TOKEN = re.compile(r"[A-Za-z_]\w*|[0-9][\w.']*|::|->|&&|\|\||\S")
BEFORE_BLOCK = {"else", "do", "try", ";", "{", "}", ":", ")", None}
SPECIFIERS = {"const", "noexcept", "mutable", "override", "final", "constexpr", "static"}
HEADS = {"struct", "class", "union", "enum", "namespace", "concept", "extern", "requires"}
SUFFIXES = (".hpp", ".cpp", ".h", ".hh", ".hxx", ".cc", ".cxx", ".ipp", ".cppm")
ASSERTIONS = {"CHECK", "CHECK_FALSE", "REQUIRE", "REQUIRE_FALSE"}
REWRITE = "name it in a statement of its own, then await it: auto t = f(std::move(x)); co_await std::move(t);"


class statement:
    """One full expression, as far as it is read."""

    def __init__(self):
        self.words, self.findings, self.awaits, self.parens = [], [], [], 0     # awaits: depth in parentheses of each
        self.conditions = []                                                      # lines of the `?` before an await


def opening(tokens: list, close: int) -> int:
    """The index of the bracket that the one at `close` closes."""
    depth = 0
    for index in range(close, -1, -1):
        depth += (tokens[index][0] in ")]}") - (tokens[index][0] in "([{")
        if depth == 0:
            return index
    return 0


def captures_at(tokens: list, at: int):
    """The capture list of the lambda that tokens[at] == '[' introduces; None when it is a subscript or an attribute."""
    before = tokens[at - 1][0] if at else ";"
    if before in (")", "]", "[", '"') or re.fullmatch(r"\w+", before) and before not in ("return", "co_return", "co_await", "co_yield"):
        return None
    inside, depth = [], 0
    for text, _ in tokens[at + 1:at + 80]:
        if text == "[" and not inside:
            return None
        if text == "]" and depth == 0:
            return " ".join(inside)
        depth += (text in "([{") - (text in ")]}")
        inside.append(text)
    return None


def kind_of_brace(tokens: list, at: int, words: list) -> str:
    """What the '{' at tokens[at] opens: 'block', 'lambda' (a body inside an expression) or 'init'."""
    index = at - 1
    for arrow in range(at - 1, max(-1, at - 30), -1):     # a trailing return type
        if tokens[arrow][0] in (";", "{", "}", "=", "(", "return"):
            break
        if tokens[arrow][0] == "->" and (tokens[arrow - 1][0] == ")" or tokens[arrow - 1][0] in SPECIFIERS):
            index = arrow - 1
            break
    while index >= 0 and tokens[index][0] in SPECIFIERS:
        index -= 1
    before = tokens[index][0] if index >= 0 else None
    if before == ")":
        head = opening(tokens, index)
        if head and tokens[head - 1][0] == "noexcept":
            head = opening(tokens, head - 2) if tokens[head - 2][0] == ")" else head
        if head and tokens[head - 1][0] == ">":            # a template parameter list of a lambda
            depth = 0
            for down in range(head - 1, -1, -1):
                depth += (tokens[down][0] == ">") - (tokens[down][0] == "<")
                if depth == 0:
                    head = down
                    break
        if head and tokens[head - 1][0] == "]" and captures_at(tokens, opening(tokens, head - 1)) is not None:
            return "lambda"
        return "block"
    if before == "]" and captures_at(tokens, opening(tokens, index)) is not None:
        return "lambda"
    if before in BEFORE_BLOCK or index != at - 1 or any(word in HEADS for word in words):
        return "block"
    return "init"


def by_value(captures: str) -> bool:
    return any(part.strip() not in ("", "this") and not part.strip().startswith("&") for part in captures.split(","))


def findings(text: str, trivial: list) -> list:
    """(line, what) of every forbidden temporary in a statement with a co_await or co_yield."""
    code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), checks.code_only(text), flags=re.M)
    tokens, line, end = [], 1, 0
    for match in TOKEN.finditer(code):
        line += code.count("\n", end, match.start())
        end = match.start()
        tokens.append((match.group(0), line))
    found, stack, braces = [], [statement()], []

    def finish():
        if stack[-1].awaits:
            found.extend(stack[-1].findings)
        stack[-1] = statement()

    for index, (token, at) in enumerate(tokens):
        current = stack[-1]
        if token == "{":
            kind = kind_of_brace(tokens, index, current.words)
            braces.append(kind)
            if kind == "init":
                name = tokens[index - 1][0] if index else ""
                if name == ">":
                    name = next((tokens[down - 1][0] for down in range(index - 1, 0, -1) if tokens[down][0] == "<"), "")
                options = index > 1 and name == "(" and tokens[index - 2][0] == "with"    # skein::call_options
                if name not in trivial and not options:
                    current.findings.append((at, "a braced initialiser"))
            else:
                if kind == "block":
                    finish()
                stack.append(statement())
            continue
        if token == "}":
            kind = braces.pop() if braces else "block"
            if kind != "init":
                finish()
                if len(stack) > 1:
                    stack.pop()
                if kind == "block":
                    finish()
            continue
        if token in "()":
            current.parens += 1 if token == "(" else -1
        if token == ";":
            parens = current.parens
            finish()
            stack[-1].parens = parens                      # the parts of a `for` head
            continue
        if token in ("co_await", "co_yield"):
            if current.words and current.words[0] in ASSERTIONS:
                current.findings.append((at, f"a {current.words[0]}"))
            current.awaits.append(current.parens)
            current.findings += [(where, "a conditional operator") for where in current.conditions]
            current.conditions = []
        elif token == "?":
            # Harmless when it only decides on an awaited value: `co_await x == 1 ? 0 : 2`.
            if any(depth < current.parens for depth in current.awaits):
                current.findings.append((at, "a conditional operator"))
            else:
                current.conditions.append(at)
        elif token == "[":
            captures = captures_at(tokens, index)
            if captures is not None and by_value(captures):
                current.findings.append((at, f"a lambda that captures by value [{captures}]"))
        current.words.append(token)
    return found


def problems_in(text: str, trivial: list, shown: str) -> list:
    """One line per place of a file that no `// await-ok:` on it or above it excuses."""
    lines, problems = text.splitlines(), []
    for at, what in findings(text, trivial):
        if "await-ok:" not in lines[at - 1] and "await-ok:" not in lines[max(0, at - 2)]:
            problems.append(f"{shown}:{at}: {what} in a statement with co_await or co_yield; {REWRITE}")
    return problems


def sources_under(path: str) -> list:
    """A file itself; of a folder its C++ files, without hidden and build folders."""
    if not os.path.isdir(path):
        return [path]
    found = []
    for at, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith((".", "build")))
        found += [os.path.join(at, name) for name in sorted(names) if name.endswith(SUFFIXES)]
    return found


def own_tree() -> list:
    return [(os.path.join(checks.ROOT, path), path) for path in checks.files("include", "src", "examples", "tests", "apps", "bench")
            if not path.startswith(("tests/checks/", "tests/compile_fail/"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="your source files and folders (default: skein's own tree)")
    paths = parser.parse_args().paths
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        parser.error(f"{missing[0]}: no such file or folder")
    # A tree of skein (checks.ROOT) is looked at as the structural checks do.
    ours = not paths or (len(paths) == 1 and os.path.exists(os.path.join(paths[0], "scripts", "layers.toml")))
    chosen = own_tree() if ours else [(path, path) for given in paths for path in sources_under(given)]
    trivial, problems, count = checks.rules()["await_trivial"], [], 0
    for path, shown in chosen:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if "co_await" in text or "co_yield" in text:
            count += text.count("co_await")
            problems += problems_in(text, trivial, shown)
    return checks.report(problems, f"{count} co_await" if not problems else "")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when the code in a header's opening comment uses a name that does not exist.

Code there is what is indented by five spaces behind `//`. Looked at are names behind `::`, `.` and `->` that are called
or assigned: they must stand in the code of include/skein, examples/ or the header's own test; and a call of something
that the header itself declares must have a possible number of arguments. Functions of an imagined program (`use(x)`)
are free, and so is what Asio and LibTorch give. A line with `...` is not counted.
"""
import os
import re
import sys

import checks

USED = re.compile(r"(?:::|\.|->)\s*([a-z_]\w*)\s*(?=[(<{]|=(?!=))")
WORD = re.compile(r"[A-Za-z_]\w*")
CALL = re.compile(r"(?:::|\.|->)\s*([a-z_]\w*)\s*(?:<[^<>()]*>)?\(")
DECLARED = re.compile(r"(\w+|[>&*])\s+[&*]*([a-z_]\w*)\s*\(")
NO_TYPE = {"return", "throw", "co_return", "co_await", "co_yield", "new", "else", "and", "or", "not"}
OUTSIDE = re.compile(r"\b(?:std|torch|fmt|asio|at)(?:::\w+)*|\basync_\w+")


def code_lines(text: str) -> list:
    """(line number, code) of the indented lines of the opening comment."""
    found = []
    for number, line in enumerate(text.splitlines()[1:80], 2):
        if line.startswith("#pragma"):
            continue
        if not line.startswith("//"):
            if line.strip() or found:
                break
            continue
        match = re.match(r"//     (.*)", line)
        if match:
            found.append((number, re.sub(r"\s//.*$", "", match.group(1))))
    return found


def closing(text: str, at: int) -> int:
    """The index behind the bracket that closes the one at `at`; -1 when it is not in the text."""
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] in "([{") - (text[index] in ")]}")
        if depth == 0:
            return index + 1
    return -1


def parts(text: str) -> list:
    """A list of arguments or parameters, cut at its own commas."""
    found, depth, start, angle = [], 0, 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "<" and index and (text[index - 1].isalnum() or text[index - 1] == "_"):
            angle += 1
        if letter == ">" and angle and text[index - 1] != "-":
            angle -= 1
        if letter == "," and depth == 0 and angle == 0:
            found.append(text[start:index].strip())
            start = index + 1
    rest = text[start:].strip()
    return [*found, rest] if rest or found else []


def counts(code: str) -> dict:
    """name -> the numbers of arguments that its declarations in this text allow."""
    found: dict = {}
    for match in DECLARED.finditer(code):
        end = closing(code, match.end() - 1)
        if end < 0 or match.group(1) in NO_TYPE:
            continue
        given = parts(code[match.end():end - 1])
        least = sum(1 for part in given if "=" not in part and "..." not in part)
        most = 99 if any("..." in part for part in given) or given == ["void"] else len(given)
        found.setdefault(match.group(2), []).append((least, most))
    return found


def problems_of(path: str, text: str, words: set) -> list:
    problems = []
    own = counts(checks.code_only(text))
    for number, line in code_lines(text):
        code = checks.code_only(line)
        bare = OUTSIDE.sub(lambda found: " " * len(found.group(0)), code)
        for used in USED.finditer(bare):
            if used.group(1) not in words:
                problems.append(f"{path}:{number}: the comment uses {used.group(1)}, which does not exist; write code that compiles")
        if "..." in code:
            continue
        for call in CALL.finditer(bare):
            name, end = call.group(1), closing(bare, call.end() - 1)
            if name in own and end > 0:
                given = len(parts(line[call.end():end - 1] if '"' in line else bare[call.end():end - 1]))
                if not any(least <= given <= most for least, most in own[name]):
                    problems.append(f"{path}:{number}: the comment calls {name} with {given} arguments, which no declaration of this header takes")
    return problems


def main() -> int:
    common = set()
    for path in checks.files("include", "examples"):
        common |= set(WORD.findall(checks.code_only(checks.read(path))))
    problems, lines = [], 0
    for path, name, layer in checks.public_headers():
        text = checks.read(path)
        lines += len(code_lines(text))
        words = common
        test = f"tests/{layer}/{os.path.basename(name)[:-4]}_test.cpp"
        if os.path.exists(os.path.join(checks.ROOT, test)):
            words = common | set(WORD.findall(checks.code_only(checks.read(test))))
        problems += problems_of(path, text, words)
    return checks.report(problems, f"{lines} lines of code in comments" if not problems else "")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a test asserts on a second thread: Catch2 keeps the running test and its messages for one thread.

Looked at is what is given to std::thread, std::jthread, std::async, vectors of threads, net::loop_thread, and to the tests' own
helpers that run what they are given on threads (run_world, try_world, each, ...: found by what is in them, across
the headers of tests/). An assertion there is found, and a call of a function or named lambda that asserts. It reads
words: what reaches a thread otherwise, through a loop or a callback, ends the test program when it runs
(tests/support/one_thread.cpp). A world of one, `run_world(1, ...)`, is the test's own thread.
"""
import os
import re
import sys

import checks

ASSERTION = re.compile(r"\b(?:(?:CHECK|REQUIRE|STATIC_CHECK|STATIC_REQUIRE)(?:_[A-Z_]+)?|FAIL(?:_CHECK)?|SUCCEED|SKIP|INFO"
                       r"|UNSCOPED_INFO|CAPTURE|WARN|SECTION|DYNAMIC_SECTION|GENERATE)\s*\(")
THREAD = re.compile(r"\bstd::(?:j?thread|async)\b(?!::)")
VECTOR = re.compile(r"\bstd::(?:vector|deque|list)<\s*std::(?:j?thread|future<[^;]*?>)\s*>\s+(\w+)")
LOOP_THREAD = re.compile(r"\b(?:net::)?loop_thread\s+((?:\w+\s*\([^()]*\)\s*,\s*)*\w+)\s*[({]")   # its tasks run on a thread of its own
STARTED = re.compile(r"\bstd::(?:j?thread(?:\s+\w+)?|async)\s*[({]")
CALLABLE = re.compile(r"function<|\bauto\b|\b[A-Z]\w*(?:\s*&&|\s*&)?\s+\w+")
DEFINITION = re.compile(r"\b(?!(?:if|for|while|switch|catch|return|sizeof|TEST_CASE|TEMPLATE_TEST_CASE|SECTION|DYNAMIC_SECTION)\b)"
                        r"([A-Za-z_]\w*)\s*(=\s*\[[^\]]*\]\s*)?\(")
AFTER_PARAMETERS = re.compile(r"(?:\s*(?:const|noexcept|mutable|override|final)\b)*(?:\s*->\s*[\w:<>,&*\s]+)?\s*\{")
LAMBDA_WITHOUT = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*\[[^\]]*\]\s*\{")
SUGGESTION = "collect there and assert on the test's thread, or throw there with skein::test::expect"


def closing(text: str, at: int) -> int:
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] in "({[") - (text[index] in ")}]")
        if depth == 0:
            return index
    return len(text)


def end_of_block(text: str, at: int) -> int:
    """Where the block ends that `at` is in."""
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth < 0:
            return index
    return len(text)


class definition:
    """A function, or a lambda with a name, which its block alone sees."""

    def __init__(self, path: str, text: str, name: re.Match, parameters: str, opens: int, is_lambda: bool):
        self.path, self.name, self.parameters, self.begin = path, name.group(1), parameters, opens
        self.body = text[opens:closing(text, opens)]
        self.scope = (name.start(), end_of_block(text, name.start())) if is_lambda else None

    def calls(self, path: str, text: str, begin: int = 0, end: int | None = None) -> list:
        """Where the text of that file calls it, `name(` or `name<...>(`: the places of the arguments' brackets."""
        if self.scope:
            if path != self.path:
                return []
            begin, end = max(begin, self.scope[0]), min(len(text) if end is None else end, self.scope[1])
        pattern = re.compile(rf"(?<![\w.>]){self.name}\s*(?:<[^;()]*>)?\s*\(")
        return [m.end() - 1 for m in pattern.finditer(text, begin, len(text) if end is None else end)]


def definitions(path: str, text: str) -> list:
    found = [definition(path, text, m, "", m.end() - 1, True) for m in LAMBDA_WITHOUT.finditer(text)]
    for match in DEFINITION.finditer(text):
        close = closing(text, match.end() - 1)
        body = AFTER_PARAMETERS.match(text, close + 1)
        if body:
            found.append(definition(path, text, match, text[match.end():close], body.end() - 1, bool(match.group(2))))
    return found


def grown(known: list, candidates: list, files: dict) -> list:
    """With those of the candidates that call one that is known, until there is none."""
    while True:
        more = [one for one in candidates if one not in known and any(
            other.calls(one.path, files[one.path].text, one.begin, one.begin + len(one.body)) for other in known)]
        if not more:
            return known
        known = known + more


class file_of_tests:
    def __init__(self, path: str):
        self.path = path
        raw = checks.read(path)
        self.text = checks.code_only(raw)
        self.defined = definitions(path, self.text)
        self.includes = set()
        for name in checks.INCLUDE.findall(raw):
            for base in ("", "tests", os.path.dirname(path)):
                self.includes.add(os.path.normpath(os.path.join(base, name)))

    def seen(self, files: dict) -> list:
        """All definitions that it sees: its own, and of the headers that it includes."""
        todo, done = [self.path], {}
        while todo:
            path = todo.pop()
            if path in files and path not in done:
                done[path] = files[path].defined
                todo += files[path].includes
        return [entry for part in done.values() for entry in part]


def regions(file: file_of_tests, runners: list) -> list:
    """(begin, end) of what is given to threads."""
    text = file.text
    starts = [m.end() - 1 for m in STARTED.finditer(text)]
    for vector in {m.group(1) for m in VECTOR.finditer(text)}:
        starts += [m.end() - 1 for m in re.finditer(rf"\b{vector}\s*\.\s*(?:emplace_back|push_back)\s*\(", text)]
    for match in LOOP_THREAD.finditer(text):
        for name in re.findall(r"\w+(?=\s*(?:\(|$))", match.group(1)):
            starts += [m.end() - 1 for m in re.finditer(rf"\b{name}\s*\.\s*run\s*\(", text)]
    for runner in runners:
        starts += [at for at in runner.calls(file.path, text) if not re.match(r"\(\s*1\s*,", text[at:])]
    return [(at, closing(text, at)) for at in starts]


def findings(file: file_of_tests, files: dict) -> list:
    seen = file.seen(files)
    taking = [one for one in seen if CALLABLE.search(one.parameters)]
    runners = grown([one for one in taking if THREAD.search(one.body)], taking, files)
    asserting = grown([one for one in seen if ASSERTION.search(one.body)], seen, files)
    found = {}
    for begin, end in regions(file, runners):
        for match in ASSERTION.finditer(file.text, begin, end):
            found[checks.line_of(file.text, match.start())] = match.group(0)[:-1].strip()
        for one in asserting:
            if one not in runners:
                for at in one.calls(file.path, file.text, begin, end):
                    found.setdefault(checks.line_of(file.text, at), f"{one.name}, which asserts,")
    return [f"{file.path}:{line}: {what} on a second thread; {SUGGESTION}" for line, what in sorted(found.items())]


def main() -> int:
    files = {path: file_of_tests(path) for path in checks.files("tests")}
    using = [file for file in files.values() if any("catch2/" in name for name in file.includes) or file.path.endswith("_test.cpp")]
    problems = [problem for file in using for problem in findings(file, files)]
    return checks.report(problems, f"{len(using)} files of tests")


if __name__ == "__main__":
    sys.exit(main())

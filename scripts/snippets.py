#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites the code and the output that README.md and docs/ show from the files that they are of.

A line before a block says what the block shows:

    <!-- snippet: PATH -->      a file without its opening comment; a run of its lines stays
    <!-- snippet: PATH#TAG -->  the lines between `// [TAG]` and `// [/TAG]` (in a script `# [TAG]`)
    <!-- snippet: PATH:2-4 -->  lines 2 to 4 of what an example prints (its .expected file), or `:2`
    <!-- output: PATH -->       what a run has printed, where PATH, an .expected file, has patterns:
                                checked, not rewritten

A block is moved to the left as far as it goes; lines that only mark regions are left out.
scripts/check_docs.py compares, scripts/check --write calls this file.
"""
import os
import re
import sys
import textwrap

import checks

sys.path.insert(0, os.path.join(os.path.dirname(checks.HERE), "cmake"))
import run_example  # noqa: E402  how an example's output is compared

BLOCK = re.compile(r"^<!-- (snippet|output): ([^ #:]+)(?:#(\w+)|:(\d+)(?:-(\d+))?)? -->[ \t]*\n\s*"
                   r"^```(\w*)\n(.*?)^```", re.S | re.M)
MARK = re.compile(r"^[ \t]*(?://|#) \[/?\w+\]\n?", re.M)
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".sh": "sh", ".py": "python", ".expected": "text"}


def pages() -> list:
    all_of_them = ["README.md", *checks.files("docs", suffixes=(".md",))]
    return [page for page in all_of_them if os.path.exists(os.path.join(checks.ROOT, page))]


def region(source: str, tag: str):
    """The text between the two marks of a tag; None where the file does not have them."""
    mark = r"^[ \t]*(?://|#) \["
    found = re.search(rf"{mark}{tag}\]\n(.*?){mark}/{tag}\]", source, re.S | re.M)
    return found.group(1) if found else None


def bare(text: str) -> list:
    return [line.strip() for line in text.strip("\n").splitlines()]


def is_run_of(lines: list, source: list) -> bool:
    begins = range(len(source) - len(lines) + 1)
    return bool(lines) and any(source[at:at + len(lines)] == lines for at in begins)


def wanted(block: re.Match) -> tuple:
    """(the text that the block should be, "") or (None, what is wrong)."""
    kind, path, tag, first, last, language, shown = block.groups()
    if not os.path.exists(os.path.join(checks.ROOT, path)):
        return None, f"{path} does not exist"
    suffix = os.path.splitext(path)[1]
    if LANGUAGES.get(suffix) != language:
        marked = language or "nothing"
        return None, f"the block is marked {marked}, and {path} is {LANGUAGES.get(suffix)}"
    source = checks.read(path)
    if kind == "output":
        expected = source.splitlines()
        arguments = expected[:1] and expected[0].startswith("#args:")
        if run_example.matches(expected[1:] if arguments else expected, shown.splitlines()) >= 0:
            return None, f"{path} does not allow this output; run the example and copy it again"
        return shown, ""
    if first:
        lines, last = source.splitlines(keepends=True), last or first
        if not 1 <= int(first) <= int(last) <= len(lines):
            return None, f"{path} has {len(lines)} lines"
        return "".join(lines[int(first) - 1:int(last)]), ""
    if tag:
        source = region(source, tag)
        if source is None:
            return None, f"{path} has no region // [{tag}] ... // [/{tag}]"
    elif suffix != ".expected":
        source = MARK.sub("", source)
        if is_run_of(bare(shown), bare(source)):
            return shown, ""
        source = re.sub(r"\A(?://[^\n]*\n|\n)+", "", source)
    return textwrap.dedent(MARK.sub("", source)).strip("\n") + "\n", ""


def main() -> int:
    problems = []
    for page in pages():
        text = checks.read(page)

        def renew(block: re.Match) -> str:
            new, problem = wanted(block)
            if problem:
                problems.append(f"{page}:{checks.line_of(text, block.start())}: {problem}")
                return block.group(0)
            begin, end = (at - block.start() for at in block.span(7))
            return block.group(0)[:begin] + new + block.group(0)[end:]
        written = BLOCK.sub(renew, text)
        if written != text:
            with open(os.path.join(checks.ROOT, page), "w", encoding="utf-8") as file:
                file.write(written)
            print(f"wrote {page}")
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

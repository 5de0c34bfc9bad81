#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_fail.py FILE -- COMPILER FLAGS...: FILE must not compile, and say what it promises.
compile_fail.py FILE --like SOURCE BUILD: with the compiler and flags (the precompiled header is one of them) that
compile_commands.json in the folder BUILD has for SOURCE.

FILE holds one or more comments `// expect: text`; each text must appear in the compiler's output, and no
text of a comment `// absent: text` may: an error of one line is buried under 400 others. When
FILE mentions the macro SKEIN_COMPILES it must compile with it defined: the failure has the cause it claims.
"""
import json
import os
import re
import shlex
import subprocess
import sys


def command_like(source: str, build: str) -> list[str]:
    """The command that compiles the source in the build folder, without its output and launcher, front end only."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entry = next(e for e in json.load(file) if e["file"] == source)
    words = [word for word in shlex.split(entry["command"]) if word not in ("-c", source)]
    if os.path.basename(words[0]) == "ccache":
        del words[0]
    at = words.index("-o")
    return words[:at] + words[at + 2:] + ["-fsyntax-only"]


def main() -> int:
    source, how, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    command = command_like(*rest) if how == "--like" else rest
    with open(source, encoding="utf-8") as file:
        text = file.read()
    expected = [line.strip() for line in re.findall(r"//\s*expect:(.*)", text)]
    if not expected:
        print(f"{source}: no comment `// expect: text`")
        return 1
    failing = subprocess.run([*command, source], capture_output=True, text=True, check=False)
    output = failing.stdout + failing.stderr
    if failing.returncode == 0:
        print(f"{source}: compiles, but must not")
        return 1
    missing = [text for text in expected if text not in output]
    if missing:
        print(output[:6000])
        print(f"{source}: fails as it should, but the output lacks: {missing}")
        return 1
    buried = [text for text in re.findall(r"//\s*absent:\s*(.*)", text) if text in output]
    if buried:
        print(output[:6000])
        print(f"{source}: fails as it should, but the output also has: {buried}")
        return 1
    if "SKEIN_COMPILES" in text:
        control = subprocess.run([*command, "-DSKEIN_COMPILES", source], capture_output=True, text=True, check=False)
        if control.returncode != 0:
            print((control.stdout + control.stderr)[:6000])
            print(f"{source}: must compile with SKEIN_COMPILES defined, but does not")
            return 1
    print(f"{source}: {len(expected)} promised texts found")
    return 0


if __name__ == "__main__":
    sys.exit(main())

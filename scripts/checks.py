# SPDX-License-Identifier: Apache-2.0
"""What the structural checks share: the tree, layers.toml, code without comments and strings.

Every check runs as `check_NAME.py [ROOT]`, prints one line `file:line: problem; what to do` per finding and
ends with 1 when there is one. ROOT is another tree for the tests of the checks; rules come from its
scripts/layers.toml if it has one, else from ours.
"""
import fnmatch
import os
import re
import shutil
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else os.path.dirname(HERE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
SKIPPED = {"build", "runs", ".git", ".cache", "__pycache__", "single_include"}


def rules() -> dict:
    own = os.path.join(ROOT, "scripts", "layers.toml")
    with open(own if os.path.exists(own) else os.path.join(HERE, "layers.toml"), "rb") as file:
        return tomllib.load(file)


def read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def files(*folders: str, suffixes=(".hpp", ".ipp", ".cpp")) -> list:
    """Paths from ROOT, sorted; without build folders and generated code."""
    found = []
    for folder in folders:
        for at, below, names in os.walk(os.path.join(ROOT, folder)):
            below[:] = sorted(name for name in below if name not in SKIPPED and not name.startswith("build-"))
            found += [os.path.relpath(os.path.join(at, name), ROOT) for name in sorted(names) if name.endswith(suffixes)]
    return found


def _in_layers(suffix: str) -> list:
    found = []
    for path in files("include/skein", suffixes=(suffix,)):
        name = os.path.relpath(path, "include/skein")
        found.append((path, name, name.split("/")[0] if "/" in name else None))
    return found


def headers() -> list:
    """(path from ROOT, path under include/skein, layer) of every header in a layer; umbrellas have layer None."""
    return _in_layers(".hpp")


def public_headers() -> list:
    return [entry for entry in headers() if entry[2] and "/detail/" not in entry[1]]


def bodies() -> list:
    """The same of every .ipp: the bodies that a public header shows in the header-only form, and src/ compiles once."""
    return _in_layers(".ipp")


def twin(name: str) -> str:
    """The public header whose bodies `net/detail/x.ipp` holds: `net/x.hpp`."""
    return name.replace("/detail/", "/")[:-len(".ipp")] + ".hpp"


def matches(name: str, patterns: list) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])+\'', re.S)


def code_only(text: str, keep_includes: bool = False) -> str:
    """The text with comments and the content of literals blanked; positions and line numbers stay."""
    def blank(match: re.Match) -> str:
        found = match.group(0)
        if found[0] == '"':
            start = text.rfind("\n", 0, match.start()) + 1
            if keep_includes and text[start:match.start()].lstrip().startswith("#"):
                return found
            return '"' + " " * (len(found) - 2) + '"'
        return re.sub(r"[^\n]", " ", found)
    return TOKEN.sub(blank, text)


DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)


def without_directives(code: str) -> str:
    """Lines of the preprocessor become spaces: what is left are statements."""
    return DIRECTIVE.sub(lambda found: re.sub(r"[^\n]", " ", found.group(0)), code)


def tool(name: str) -> str:
    """A program of packaging/test-python.txt, where scripts/setup --test puts it or on the PATH; "" when it is missing."""
    import compiling   # not installed with this file, whose rules users run over trees of their own

    own = os.path.join(compiling.deps_folder(), "test-python", "bin", name)
    return shutil.which(own) or shutil.which(name) or ""


def without_tool(name: str, problems: list | None = None) -> int:
    """What a check ends with whose tool is missing: in CI, where all tools are, a check that did not run has failed."""
    text = f"{name} is not here; run scripts/setup --test"
    if os.environ.get("CI"):
        return report([*(problems or []), f"packaging/test-python.txt:1: {text}"])
    return report(problems or [], f"skipped: {text}")


def report(problems: list, summary: str = "") -> int:
    for problem in problems:
        print(problem)
    if summary:
        print(f"   {summary}")
    return 1 if problems else 0

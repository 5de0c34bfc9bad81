#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a line of scripts/layers.toml matches nothing: a stale name lets the next violation pass unseen."""
import os
import sys

import check_headers
import checks

RULES = checks.rules()
RULES_FILE = "scripts/layers.toml"


def line_with(text: str, part: str) -> int:
    """The line of layers.toml that names it, for the message."""
    for number, line in enumerate(checks.read(RULES_FILE).splitlines(), 1) if os.path.exists(os.path.join(checks.ROOT, RULES_FILE)) else ():
        if f'"{part}"' in line and (not text or text in line):
            return number
    return 1


def stale_globs(inside: list, everywhere: list) -> list:
    """(where in the file, glob) of every glob that no file answers to."""
    found = [("torch_free", glob) for glob in RULES["torch_free"] if not any(checks.matches(name, [glob]) for name in inside)]
    for party in RULES["third_party"]:
        found += [(f"doors of {party['name']}", glob) for glob in party["doors"] if not any(checks.matches(name, [glob]) for name in inside)]
    for door in RULES["door"]:
        found += [(f"allowed of {door['pattern']}", glob) for glob in door["allowed"] if not any(checks.matches(path, [glob]) for path in everywhere)]
    return found


def stale_exceptions(inside: list) -> list:
    found = []
    for kind in ("umbrella_exceptions", "mirror_exceptions", "size_exceptions", "entry_points"):
        for name, why in RULES[kind]:
            if name not in inside:
                found.append((kind, name))
            elif len(why.split()) < 3:
                found.append((f"{kind}, without a reason", name))
            elif kind == "mirror_exceptions" and os.path.exists(os.path.join(checks.ROOT, "tests", name[:-4] + "_test.cpp")):
                found.append((f"{kind}, though it has a test", name))
            elif kind == "size_exceptions":
                limit = check_headers.HEADER_LIMIT if name.endswith(".hpp") else check_headers.BODIES_LIMIT
                if len(checks.read(f"include/skein/{name}").splitlines()) <= limit:
                    found.append((f"{kind}, though it is short enough", name))
    for name, function, _ in RULES["function_exceptions"]:
        long_ones = [] if name not in inside else [
            what for _, length, what in check_headers.functions(checks.read(f"include/skein/{name}")) if length > check_headers.FUNCTION_LIMIT]
        if function not in long_ones:
            found.append(("function_exceptions, though it is short or gone", name))
    for layer, name, why in RULES.get("shared_details", []):
        if not any(f"#include <skein/{name}>" in checks.read(path) for path, _, of in checks.headers() + checks.bodies() if of == layer):
            found.append((f"shared_details, though {layer} does not include it", name))
        elif len(why.split()) < 3:
            found.append(("shared_details, without a reason", name))
    for path, part, _ in RULES["text_exceptions"]:
        if not os.path.exists(os.path.join(checks.ROOT, path)) or part not in checks.read(path):
            found.append(("text_exceptions", path))
    return found


def main() -> int:
    inside = [name for _, name, layer in checks.headers() + checks.bodies() if layer is not None]
    everywhere = checks.files("include", "src", "examples", "apps")
    stale = stale_globs(inside, everywhere) + stale_exceptions(inside)
    stale += [("layers", layer) for layer in RULES["layers"] if not any(name.startswith(layer + "/") for name in inside)]
    problems = [f"{RULES_FILE}:{line_with('', name)}: {kind}: {name} matches nothing; mend it or take it out" for kind, name in stale]
    return checks.report(problems)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when an include goes up, to a foreign detail/ or to an umbrella, or a third party is outside its door."""
import sys

import checks

RULES = checks.rules()
RANK = {name: rank for rank, name in enumerate(RULES["layers"])}


def main() -> int:
    problems = []
    edges = set()
    for path, name, layer in checks.headers():
        text = checks.code_only(checks.read(path), keep_includes=True)
        if layer is not None and layer not in RANK:
            problems.append(f"{path}:1: the folder is no layer; layers are {' '.join(RANK)}")
            continue
        for found in checks.INCLUDE.finditer(text):
            target, where = found.group(1), f"{path}:{checks.line_of(text, found.start())}"
            if target.startswith("skein/"):
                parts = target.split("/")
                if layer is None:
                    continue  # an umbrella; check_mirror knows its content
                if len(parts) == 2:
                    problems.append(f"{where}: {name} includes the umbrella {target}; include the headers that it needs")
                elif parts[1] not in RANK:
                    problems.append(f"{where}: {target} is in no layer")
                elif RANK[parts[1]] > RANK[layer]:
                    problems.append(f"{where}: {layer} -> {parts[1]} goes up; {layer} may include {' '.join(RULES['layers'][:RANK[layer] + 1])}")
                elif parts[1] != layer and "detail" in parts:
                    problems.append(f"{where}: {target} belongs to {parts[1]} alone; use its public header")
                else:
                    edges.add((layer, parts[1]))
                continue
            if '"' in found.group(0):
                problems.append(f"{where}: quoted include {target}; write <skein/layer/name.hpp>")
            for party in RULES["third_party"]:
                if checks.matches(target, party["includes"]) and not checks.matches(name, party["doors"]):
                    problems.append(f"{where}: {party['name']} ({target}) outside its door; include <skein/{party['doors'][0]}>")
    return checks.report(problems, f"{len(edges)} edges, all downward" if not problems else "")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a bug of scripts/mutants.toml cannot be planted any more: its text must be in its file exactly once."""
import os
import sys
import tomllib

import checks

TABLE = "scripts/mutants.toml"


def mutants() -> list:
    with open(os.path.join(checks.ROOT, TABLE), "rb") as file:
        return tomllib.load(file)["mutant"]


def planted(mutant: dict, read) -> dict:
    """{path: its text with the bug}. read(path) is its text without.
    ValueError: the table does not fit the tree."""
    texts = {}
    for file, old, new in mutant["edits"]:
        path = f"include/skein/{file}"
        try:
            text = texts.get(path) or read(path)
        except FileNotFoundError:
            raise ValueError(f"{mutant['name']}: there is no {path}") from None
        times = text.count(old)
        if times != 1:
            raise ValueError(f"{mutant['name']}: its text is {times} times in {path}, not once; look at what has changed and plant the bug again")
        texts[path] = text.replace(old, new)
    return texts


def main() -> int:
    if not os.path.exists(os.path.join(checks.ROOT, TABLE)):
        return checks.report([])
    problems, names = [], set()
    known = {name.removesuffix("_scenario.cpp") for name in os.listdir(os.path.join(checks.ROOT, "tests/sim")) if name.endswith("_scenario.cpp")}
    table = mutants()
    for mutant in table:
        try:
            planted(mutant, checks.read)
        except ValueError as why:
            problems.append(f"{TABLE}:1: {why}")
        if mutant["name"] in names:
            problems.append(f"{TABLE}:1: {mutant['name']} is there twice")
        names.add(mutant["name"])
        for scenario in mutant["scenarios"]:
            if scenario not in known:
                problems.append(f"{TABLE}:1: {mutant['name']}: there is no tests/sim/{scenario}_scenario.cpp")
    return checks.report(problems, f"{len(table)} bugs can be planted" if not problems else "")


if __name__ == "__main__":
    sys.exit(main())

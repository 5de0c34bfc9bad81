#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when including skein costs more than scripts/cost.toml allows, in either of its two forms.

Preprocessed lines of the umbrellas, which are exact, and their parse times as ratios to <asio.hpp> of the same run
(medians of three, in turns), which fail at one and a half times their budget. Minutes (SKEIN_COST_ROUNDS=1 is rough); the lines
alone are the check `lines`. `check_cost.py TREE` measures another tree, for a comparison.
"""
import os
import sys
import tempfile
import tomllib

import checks
import compiling

TOLERANCE = 1.5
ROUNDS = int(os.environ.get("SKEIN_COST_ROUNDS", "3"))


def flags_of(form: list, header: str) -> list:
    torch = compiling.libtorch_flags() if header == "skein/train.hpp" else []
    return ["-std=c++20", "-pthread", "-w", *form, f"-I{checks.ROOT}/include", *torch]


def lines_of(compiler: str, flags: list, source: str) -> int:
    return sum(1 for line in compiling.run([compiler, *flags, "-E", "-P", source]).splitlines() if line.strip())


def cases(rules: dict, folder: str):
    """(header, form, its budget, flags, a source that includes it) of everything that can be compiled here."""
    for header, budgets in rules["budget"].items():
        if not os.path.exists(os.path.join(checks.ROOT, "include", header)):
            yield header, None, f"there is no include/{header}", [], ""
            continue
        if header == "skein/train.hpp" and not compiling.libtorch_flags():
            print(f"   {header}: skipped, no LibTorch in the cache folder or in LIBTORCH")
            continue
        source = os.path.join(folder, header.replace("/", "_") + ".cpp")
        with open(source, "w", encoding="ascii") as file:
            file.write(f"#include <{header}>\n")
        for form, budget in budgets.items():
            yield header, form, budget, flags_of(rules["forms"][form], header), source


def main(lines_only: bool = False) -> int:
    own = os.path.join(checks.ROOT, "scripts", "cost.toml")
    path = own if os.path.exists(own) else os.path.join(checks.HERE, "cost.toml")
    with open(path, "rb") as file:
        rules = tomllib.load(file)
    compiler = compiling.compiler()
    if not compiler:
        return checks.report([], "skipped: no compiler found: clang++-19 or g++, or set CXX")
    problems, commands, rows = [], {}, []
    with tempfile.TemporaryDirectory(prefix="skein-cost-") as folder:
        baseline = os.path.join(folder, "asio.cpp")
        with open(baseline, "w", encoding="ascii") as file:
            file.write("#include <asio.hpp>\n")
        if not lines_only:
            commands["asio"] = [compiler, "-std=c++20", "-pthread", "-w", "-fsyntax-only", baseline]
        for header, form, budget, flags, source in cases(rules, folder):
            if form is None:
                problems.append(f"scripts/cost.toml:1: {budget}; take its budget out")
                continue
            lines = lines_of(compiler, flags, source)
            rows.append((header, form, lines, budget))
            if lines > budget["lines"]:
                problems.append(f"scripts/cost.toml:1: {header}, {form}: {lines} preprocessed lines, the budget is {budget['lines']}; "
                                "include less, or move bodies into a .ipp")
            commands[f"{header} {form}"] = [compiler, *flags, "-fsyntax-only", source]
        times = {} if lines_only else compiling.in_turns(commands, ROUNDS)
    for header, form, lines, budget in rows:
        text = f"{header:16} {form:12} {lines:7} lines of {budget['lines']:7}"
        if times:
            ratio = times[f"{header} {form}"] / times["asio"]
            text += f", {times[f'{header} {form}']:5.1f} s, {ratio:4.1f}x asio.hpp of {budget['parse']:4.1f}"
            if ratio > budget["parse"] * TOLERANCE:
                problems.append(f"scripts/cost.toml:1: {header}, {form}: parses in {ratio:.1f}x the time of asio.hpp, the budget is {budget['parse']}")
        print(f"   {text}")
    return checks.report(problems, f"asio.hpp {times['asio']:.2f} s ({os.path.basename(compiler)})" if times else "")


if __name__ == "__main__":
    sys.exit(main())

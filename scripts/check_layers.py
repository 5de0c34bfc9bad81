#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when an include goes up, to a foreign detail/ or to an umbrella, or a third party is outside its door.

Files of bodies (.ipp) belong to their layer and are included from above only: by headers of their own layer, under
`#if SKEIN_HEADER_ONLY`, by a .ipp of which they are a part, and by src/. A .ipp does not include the public header
that includes it, and neither headers nor .ipp files include each other in a circle.

Parts are floors inside a layer ([[parts]] in layers.toml): a part includes itself, the parts before it and files that are
in no part, never a part behind it nor the class that makes the parts.
"""
import re
import sys

import checks

RULES = checks.rules()
RANK = {name: rank for rank, name in enumerate(RULES["layers"])}
SHARED = {(layer, header) for layer, header, _ in RULES.get("shared_details", [])}
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|else|elif|endif)\b[ \t]*(.*)$", re.M)


def part_of(name: str):
    """(parts of a layer, number) of a file, or None; the class that makes the parts is behind all of them."""
    for parts in RULES.get("parts", []):
        for number, (_, patterns) in enumerate(parts["order"]):
            if checks.matches(name, patterns):
                return parts, number
        if checks.matches(name, parts["above"]):
            return parts, len(parts["order"])
    return None


def of_part(name: str, target: str, where: str) -> str:
    """What is wrong with an include between parts of a layer, or nothing."""
    here, there = part_of(name), part_of(target)
    if here is None or there is None or here[0] is not there[0] or there[1] <= here[1]:
        return ""
    order = here[0]["order"]
    below = " ".join(part for part, _ in order[:here[1]]) or "none"
    what = order[there[1]][0] if there[1] < len(order) else "what makes the parts"
    return f"{where}: part {order[here[1]][0]} -> {what} ({target}) goes up; it may know {below}, and tells others through an interface of its own"


def conditions_at(text: str, position: int) -> list:
    """The conditions that hold at a place, outermost first."""
    stack = []
    for found in CONDITION.finditer(text, 0, position):
        if found.group(1).startswith("if"):
            stack.append(found.group(2).strip())
        elif stack:
            last = stack.pop()
            if found.group(1) != "endif":
                stack.append(f"not {last}")
    return stack


def of_skein(path: str, name: str, layer: str, target: str, where: str, conditions: list) -> str:
    """What is wrong with the include of a header of ours, or nothing."""
    parts = target.split("/")
    if len(parts) == 2:
        return f"{where}: {name} includes the umbrella {target}; include the headers that it needs"
    if parts[1] not in RANK:
        return f"{where}: {target} is in no layer"
    if RANK[parts[1]] > RANK[layer]:
        return f"{where}: {layer} -> {parts[1]} goes up; {layer} may include {' '.join(RULES['layers'][:RANK[layer] + 1])}"
    if parts[1] != layer and "detail" in parts and (layer, target.removeprefix("skein/")) not in SHARED:
        return f"{where}: {target} belongs to {parts[1]} alone; use its public header"
    if target.endswith(".ipp"):
        if path.endswith(".hpp") and "SKEIN_HEADER_ONLY" not in conditions:
            return f"{where}: {target} is included without #if SKEIN_HEADER_ONLY: the compiled form would have its bodies twice"
    return ""


def circles(graph: dict) -> list:
    """Each circle of includes among headers once, as the names on it."""
    state, trail, found = {}, [], []

    def walk(name: str):
        state[name] = "open"
        trail.append(name)
        for below in sorted(graph.get(name, ())):
            if state.get(below) == "open":
                found.append(trail[trail.index(below):] + [below])
            elif below not in state:
                walk(below)
        trail.pop()
        state[name] = "done"

    for name in sorted(graph):
        if name not in state:
            walk(name)
    return found


def unused_bodies(included: dict) -> list:
    """The .ipp files that the header-only form, or src/, does not have."""
    problems = []
    compiled = {}
    for path in checks.files("src", suffixes=(".cpp",)):
        for found in checks.INCLUDE.finditer(checks.code_only(checks.read(path), keep_includes=True)):
            compiled[found.group(1)] = path
    for path, name, _ in checks.bodies():
        if name not in included:
            problems.append(f"{path}:1: no header includes it; end {checks.twin(name)} with it under #if SKEIN_HEADER_ONLY")
        if compiled and f"skein/{name}" not in compiled:
            problems.append(f"{path}:1: no file of src/ includes it: the compiled form lacks its bodies")
    return problems


def main() -> int:
    problems, edges, graph, included, from_bodies = [], set(), {}, {}, []
    for path, name, layer in checks.headers() + checks.bodies():
        text = checks.code_only(checks.read(path), keep_includes=True)
        if layer is not None and layer not in RANK:
            problems.append(f"{path}:1: the folder is no layer; layers are {' '.join(RANK)}")
            continue
        for found in checks.INCLUDE.finditer(text):
            target, where = found.group(1), f"{path}:{checks.line_of(text, found.start())}"
            if target.startswith("skein/"):
                if layer is None:
                    continue  # an umbrella; check_mirror knows its content
                wrong = (of_skein(path, name, layer, target, where, conditions_at(text, found.start()))
                         or of_part(name, target.removeprefix("skein/"), where))
                if wrong:
                    problems.append(wrong)
                    continue
                edges.add((layer, target.split("/")[1]))
                if target.endswith(".ipp"):
                    included.setdefault(target[len("skein/"):], set()).add(name)
                if path[-4:] == target[-4:]:
                    graph.setdefault(name, set()).add(target[len("skein/"):])
                elif path.endswith(".ipp"):
                    from_bodies.append((name, target[len("skein/"):], where))
                continue
            if '"' in found.group(0):
                problems.append(f"{where}: quoted include {target}; write <skein/layer/name.hpp>")
            for party in RULES["third_party"]:
                if checks.matches(target, party["includes"]) and not checks.matches(name, party["doors"]):
                    instead = f"include <skein/{party['doors'][0]}>" if party["doors"] else "no header includes it"
                    problems.append(f"{where}: {party['name']} ({target}) outside its door; {party.get('use', instead)}")
    for name, target, where in from_bodies:
        if target in included.get(name, ()) or target == checks.twin(name):
            problems.append(f"{where}: {name} includes its own public header {target}; that header, or src/, includes it: arrows go one way")
    for circle in circles(graph):
        problems.append(f"include/skein/{circle[0]}:1: files include each other: {' -> '.join(circle)}; machinery is only included from below")
    problems += unused_bodies(included)
    return checks.report(problems, f"{len(edges)} edges, all downward" if not problems else "")


if __name__ == "__main__":
    sys.exit(main())

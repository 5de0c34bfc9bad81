#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a class has more than 40 functions or 30 fields, or when files of one class call each other in a ring.

A function is a declaration with its signature: overloads count each, `= default`, `= delete` and friends do not. A
field is a name with a place in the object, or a static one. Nested classes count by themselves. A ring: files that
hold bodies of one class, where each reaches each other one by calls of the class's functions that another file alone
defines; calls on other objects are left out.

What is over stands in layers.toml (class_exceptions, ring_exceptions) with its numbers of today and a reason: more
than these fails, and so does less, until the line says so. `check_classes.py --list` prints the largest classes.
"""
import os
import re
import sys

import checks

FUNCTION_LIMIT, FIELD_LIMIT = 40, 30
ATTRIBUTE = re.compile(r"\[\[[^\]]*\]\]")
CLASS = re.compile(r"\b(?:class|struct|union)\s+(?:alignas\s*\([^)]*\)\s*)?([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)")
NO_MEMBER = re.compile(r"^(?:friend|using|typedef|static_assert|enum|namespace|extern|public|private|protected)\b")
DEFINED = re.compile(r"((?:[A-Za-z_]\w*::)+)(~?[A-Za-z_]\w*|operator\s*[^\s\w(]+)\s*\($")
CALL = re.compile(r"(?P<before>\b(?:self|this)\s*->\s*|\bself\s*\.\s*|(?<![\w.>])(?:[A-Za-z_]\w*::)*)(?P<name>~?[A-Za-z_]\w*)\s*\(")


def code_of(path: str) -> str:
    return ATTRIBUTE.sub(lambda found: " " * len(found.group(0)), checks.without_directives(checks.code_only(checks.read(path))))


def without_templates(text: str) -> str:
    """`std::function<void(int)> f` without what stands between < and >: parentheses there make no function."""
    out, depth, operator = [], 0, re.compile(r"operator\s*(<=>|<<=?|>>=?|<=|>=|<|>|->)")
    text = operator.sub("operator_", text)
    for at, sign in enumerate(text):
        if sign == "<" and (depth or re.search(r"[\w]\s*$|template\s*$", text[:at])):
            depth += 1
        elif sign == ">" and depth and text[at - 1] != "-":
            depth -= 1
        elif depth == 0:
            out.append(sign)
    return "".join(out)


class scanned:
    """Classes with what they declare, and bodies of member functions, of one file."""

    def __init__(self, path: str):
        self.path, self.code = path, code_of(path)
        self.classes: dict = {}    # name -> [first line, functions, fields]
        self.bodies: list = []     # (class, function, body)
        self.walk(0, [])

    def block_end(self, at: int) -> int:
        """Behind the bracket that closes the one at `at`."""
        depth = 0
        while at < len(self.code):
            sign = self.code[at]
            depth += (sign == "{") - (sign == "}")
            at += 1
            if depth == 0:
                return at
        return at

    def is_value(self, at: int, statement: str) -> bool:
        """The bracket holds a value: `int x{1};`, `: a_{1}`, `= {1}`, an argument."""
        bare = statement.rstrip()
        if statement.count("(") > statement.count(")"):
            return True
        return bare.endswith(("=", ",", "return")) or bare == statement and bool(re.search(r"[\w>]$", bare))

    def walk(self, at: int, within: list) -> int:
        """Reads the statements of a namespace or class until its end; gives where that is."""
        begin = at
        statement = ""
        while at < len(self.code):
            sign = self.code[at]
            if sign == "{":
                if self.is_value(at, statement):
                    end = self.block_end(at)
                    statement += " {} " if self.code[at - 1] == " " else "{}"
                    at = end
                    continue
                at = self.block(at, begin, statement, within)
                begin, statement = at, ""
            elif sign == "}":
                return at + 1
            elif sign == ";":
                self.declare(statement, within)
                at += 1
                begin, statement = at, ""
            elif sign == ":" and re.fullmatch(r"\s*(?:public|private|protected)\s*", statement) and within:
                at += 1
                begin, statement = at, ""
            else:
                statement += sign
                at += 1
        return at

    def block(self, at: int, begin: int, statement: str, within: list) -> int:
        head = without_templates(statement)
        words = head.strip()
        if re.match(r"(?:inline\s+)?namespace\b|extern\b", words) and "(" not in words:
            return self.walk(at + 1, within)
        named = CLASS.search(head.split("(")[0]) if not re.search(r"\benum\b", head) else None
        # A function that gives a class: `struct x f() {`.
        is_function = "(" in re.sub(r"alignas\s*\([^)]*\)", "", head)
        if named and (not is_function or re.search(r"\bclass\b|\bstruct\b", head.split("(")[0]) and ":" in head.split("(")[0].replace("::", "")):
            name = "::".join([*within, named.group(1)])
            line = checks.line_of(self.code, begin + len(statement) - len(statement.lstrip()))
            self.classes.setdefault(name, [line, 0, 0])
            return self.walk(at + 1, [*within, named.group(1)])
        end = self.block_end(at)
        if re.search(r"\benum\b", head) and not is_function:
            return end
        if within:
            if not NO_MEMBER.match(words):
                self.classes["::".join(within)][1] += 1
                name = re.search(r"(~?[A-Za-z_]\w*|operator\s*[^\s\w(]*)\s*\(", head)
                self.bodies.append(("::".join(within), name.group(1) if name else "?", self.code[at:end]))
            return end
        before = head[:head.find("(") + 1] if "operator" not in head else head[:head.find("(", head.find("operator") + 8) + 1]
        defined = DEFINED.search(before.replace(" ::", "::"))
        if defined:
            self.bodies.append((defined.group(1)[:-2], defined.group(2), self.code[at:end]))
        return end

    def declare(self, statement: str, within: list):
        words = statement.strip()
        if not within or not words or NO_MEMBER.match(words) or words.startswith("template") and re.search(r"\bfriend\b|\busing\b", words):
            return
        bare = without_templates(words)
        if re.fullmatch(r"(?:template\s*)?(?:class|struct|union)\s+[\w:]+", bare.strip()) or re.search(r"=\s*(?:default|delete)$", bare):
            return
        member = self.classes["::".join(within)]
        # What is a default or an initial value makes no function.
        head = re.split(r"(?<![=!<>])=(?!=)", bare)[0] if "operator" not in bare else bare
        if re.search(r"\(\s*\*", head) or "(" not in head:
            plain = re.sub(r"\{\}|\[[^\]]*\]", "", head)
            member[2] += 1 + re.sub(r"\([^)]*\)", "", plain).count(",") + self.more_names(bare, head)
        else:
            member[1] += 1

    @staticmethod
    def more_names(bare: str, head: str) -> int:
        """`int a = 0, b = 0`: names behind the first value."""
        rest, depth, count = bare[len(head):], 0, 0
        for at, sign in enumerate(rest):
            depth += (sign in "([{") - (sign in ")]}")
            if sign == "," and depth == 0 and re.match(r"\s*[*&]?[A-Za-z_]\w*\s*(?:=|,|$|\{)", rest[at + 1:]):
                count += 1
        return count


def calls_of(body: str, names: set, own: str) -> set:
    """The functions of the class `own` that a body of it calls, by name."""
    found = set()
    for call in CALL.finditer(body):
        name, before = call.group("name"), call.group("before")
        is_own = not before.endswith("::") or before[:-2].split("::")[-1] == own.split("::")[-1]
        if name in names and is_own:
            found.add(name)
    return found


def rings(edges: dict) -> list:
    """Groups of files that reach each other, larger than one."""
    order, low, stack, on, out, count = {}, {}, [], set(), [], [0]

    def visit(at: str):
        order[at] = low[at] = count[0]
        count[0] += 1
        stack.append(at)
        on.add(at)
        for below in sorted(edges.get(at, ())):
            if below not in order:
                visit(below)
                low[at] = min(low[at], low[below])
            elif below in on:
                low[at] = min(low[at], order[below])
        if low[at] == order[at]:
            group = []
            while True:
                one = stack.pop()
                on.discard(one)
                group.append(one)
                if one == at:
                    break
            if len(group) > 1:
                out.append(sorted(group))
    for name in sorted(edges):
        if name not in order:
            visit(name)
    return out


def rings_of_class(own: str, bodies: list) -> list:
    """bodies: (file, function, text). The rings of its files."""
    where: dict = {}
    for path, name, _ in bodies:
        where.setdefault(name, set()).add(path)
    alone = {name: next(iter(paths)) for name, paths in where.items() if len(paths) == 1}
    edges: dict = {path: set() for path, _, _ in bodies}
    for path, _, text in bodies:
        edges[path] |= {alone[name] for name in calls_of(text, set(alone), own)} - {path}
    return rings(edges)


def main() -> int:
    rules = checks.rules()
    known = {(layer, name): (functions, fields) for layer, name, functions, fields, _ in rules.get("class_exceptions", [])}
    known_rings = {(layer, name): files for layer, name, files, _ in rules.get("ring_exceptions", [])}
    classes, bodies = {}, {}
    for path, _, layer in checks.headers() + checks.bodies():
        if layer is None:
            continue
        seen = scanned(path)
        for name, (line, functions, fields) in seen.classes.items():
            old = classes.get((layer, name))
            if old is None or functions + fields > old[2] + old[3]:
                classes[(layer, name)] = (path, line, functions, fields)
        if path.endswith(".ipp"):    # bodies inside of a class are that class's own
            for name, function, text in seen.bodies:
                bodies.setdefault((layer, name), []).append((path, function, text))
    if "--list" in sys.argv:
        for (layer, name), (path, line, functions, fields) in sorted(classes.items(), key=lambda one: -one[1][2])[:40]:
            print(f"{layer:8} {name:40} {functions:4} functions {fields:3} fields  {path}:{line}")
    problems = []
    for key, (path, line, functions, fields) in sorted(classes.items()):
        at_most = known.get(key)
        now = f"{functions} functions and {fields} fields"
        if at_most is None and (functions > FUNCTION_LIMIT or fields > FIELD_LIMIT):
            problems.append(f"{path}:{line}: {key[1]} has {now}, the limits are {FUNCTION_LIMIT} and {FIELD_LIMIT}; give it parts with one role each")
        elif at_most is not None and (functions > at_most[0] or fields > at_most[1]):
            problems.append(f"{path}:{line}: {key[1]} has {now}, and had {at_most[0]} and {at_most[1]}; it is to become smaller: put what is new into a part of its own")
        elif at_most is not None and at_most != (functions, fields):
            problems.append(f"scripts/layers.toml:1: class_exceptions: {key[1]} of {key[0]} has {now} now, no more {at_most[0]} and {at_most[1]}; "
                            + ("say so there" if functions > FUNCTION_LIMIT or fields > FIELD_LIMIT else "take the line out"))
    for layer, name in sorted(set(known) - set(classes)):
        problems.append(f"scripts/layers.toml:1: class_exceptions: there is no {name} in {layer}; take the line out")
    seen_rings = {}
    for key, its in sorted(bodies.items()):
        found = rings_of_class(key[1], its)
        if not found:
            continue
        ring = max(found, key=len)
        seen_rings[key] = len(ring)
        text = f"{len(ring)} files of {key[1]} call each other in a ring: {' '.join(os.path.basename(path) for path in ring)}"
        at_most = known_rings.get(key)
        if at_most is None:
            problems.append(f"{ring[0]}:1: {text}; give the class parts that know only what is below them")
        elif len(ring) > at_most:
            problems.append(f"{ring[0]}:1: {text}; there were {at_most}")
        elif len(ring) < at_most:
            problems.append(f"scripts/layers.toml:1: ring_exceptions: {key[1]} of {key[0]} has a ring of {len(ring)} files now, no more {at_most}; say so there")
    for layer, name in sorted(set(known_rings) - set(seen_rings)):
        problems.append(f"scripts/layers.toml:1: ring_exceptions: files of {name} of {layer} are in no ring; take the line out")
    return checks.report(problems, f"{len(classes)} classes, {len(known)} of them too large, {len(known_rings)} in rings")


if __name__ == "__main__":
    sys.exit(main())

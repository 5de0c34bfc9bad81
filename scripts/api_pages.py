#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reference pages as Markdown: one per public header, from Doxygen's XML and the header's own comments.

    api_pages.py --write FOLDER   FOLDER/index.md and FOLDER/<layer>/<header>.md
    api_pages.py --missing        lists public entities without a text; ends with 1 when there is one, 77 without doxygen

Doxygen says what there is and where. Texts are taken from the file, with the line breaks their author gave tables and
lists of arguments, and so is the comment at the top of a header, of which Doxygen knows nothing. An entity is what a
namespace holds outside `detail`: overloads count as one, operators and specialisations for other libraries not at all.
"""
import collections
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree

import checks
import code_map

ROOT = checks.ROOT
SETTINGS = """
INPUT = {root}/include/skein
OUTPUT_DIRECTORY = {out}
STRIP_FROM_PATH = {root}/include
EXCLUDE_PATTERNS = */detail/*
FILE_PATTERNS = *.hpp
RECURSIVE = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
JAVADOC_AUTOBRIEF = YES
SORT_MEMBER_DOCS = NO
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = SKEIN_HEADER_ONLY=0 SKEIN_INLINE=inline
QUIET = YES
WARNINGS = NO
WARN_IF_UNDOCUMENTED = NO
WARN_IF_DOC_ERROR = NO
"""
SHOWN = ("public-type", "public-static-func", "public-func", "public-static-attrib", "public-attrib", "friend")
Entity = collections.namedtuple("Entity", "name kind line signature text members documented")


def doxygen(into: str) -> dict:
    """Every compound of the headers by Doxygen's id, as XML elements."""
    settings = SETTINGS.format(root=ROOT, out=into)
    subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = {}
    folder = os.path.join(into, "xml")
    for name in sorted(os.listdir(folder)):
        if re.match(r"(class|struct|union|namespace|concept)\w*\.xml$", name):
            compound = ElementTree.parse(os.path.join(folder, name)).getroot().find("compounddef")
            found[compound.get("id")] = compound
    return found


def words(element) -> str:
    """The text of an element, in the spacing of our sources."""
    text = " ".join("".join(element.itertext()).split()) if element is not None else ""
    text = re.sub(r"(?<=<) | (?=>)", "", text)
    text = re.sub(r"(?<=\w|>) (?=[&*]+(?:\W|$))", "", text)
    text = re.sub(r"(?<=[\w>]) ([&*]{1,2})(?=\w)", r"\1 ", text)
    text = re.sub(r"(?<=\w)=(?=[\w{\"'-])(?!default|delete)", " = ", text)
    return text.replace("> >", ">>")


def template_of(element) -> str:
    parameters = element.find("templateparamlist")
    if parameters is None:
        return ""
    shown = []
    for parameter in parameters.findall("param"):
        name, default = words(parameter.find("declname")), words(parameter.find("defval"))
        text = words(parameter.find("type"))
        text += f" {name}" if name and not text.endswith(" " + name) else ""
        shown.append(text + (f" = {default}" if default else ""))
    requires = words(element.find("requiresclause"))
    return f"template <{', '.join(shown)}>\n" + (f"    requires {requires}\n" if requires else "")


def signature_of(member) -> str:
    kind, name = member.get("kind"), words(member.find("name"))
    type_, arguments = words(member.find("type")), words(member.find("argsstring"))
    if kind == "typedef":
        return f"{template_of(member)}using {name} = {type_}"
    if kind == "enum":
        values = [f"{words(value.find('name'))} {words(value.find('initializer'))}".strip() + "," for value in member.findall("enumvalue")]
        widest = max(map(len, values), default=0)
        values = [name.ljust(widest) + f"  // {said}" if (said := text_of(value)) else name for name, value in zip(values, member.findall("enumvalue"))]
        return f"enum {'class ' if member.get('strong') == 'yes' else ''}{name} {{\n" + "\n".join("    " + v for v in values) + "\n}"
    start = words(member.find("initializer"))
    start = f" {start}" if start.strip("{} =") and len(start) <= 60 and kind == "variable" else ""
    explicit = "explicit " if member.get("explicit") == "yes" else ""
    return f"{template_of(member)}{explicit}{type_ + ' ' if type_ else ''}{name}{arguments}{start}"


def text_of(element) -> str:
    """Doxygen's idea of the text: one paragraph."""
    return " ".join(f"{words(element.find('briefdescription'))} {words(element.find('detaileddescription'))}".split())


def comment_above(lines: list, line: int) -> str:
    """The /// lines above the declaration that stands in this line (counted from 1), as they are."""
    at = line - 2
    while at >= 0 and lines[at].strip() and not lines[at].lstrip().startswith("//") and not lines[at].rstrip().endswith((";", "}", ":", "{")):
        at -= 1
    found = []
    while at >= 0 and lines[at].lstrip().startswith("///") and not lines[at].lstrip().startswith("///<"):
        found.append(re.sub(r"^\s*/// ?", "", lines[at].rstrip()))
        at -= 1
    return "\n".join(reversed(found))


def is_plumbing(member) -> bool:
    """Copies, moves and destructors say nothing; deleted functions are not there."""
    name, arguments = words(member.find("name")), words(member.find("argsstring"))
    return name.startswith("~") or name == "operator=" or arguments.endswith(("=delete", "=default")) or words(member.find("type")).startswith("friend class")


def members_of(compound, lines: list) -> str:
    """What a class offers, in the order of the file, as the inside of its declaration."""
    found = [member for section in compound.findall("sectiondef") if section.get("kind") in SHOWN for member in section.findall("memberdef")]
    found = [member for member in found if not is_plumbing(member) and words(member.find("name"))]
    shown = []
    for member in sorted(found, key=lambda m: int(m.find("location").get("line"))):
        text, behind = comment_above(lines, int(member.find("location").get("line"))), ""
        if not text and (said := text_of(member)):
            text, behind = ("", f"  // {said}") if len(said) < 70 else (textwrap.fill(said, 84), "")
        block = "".join(f"// {line}".rstrip() + "\n" for line in text.splitlines()) + signature_of(member) + ";" + behind
        if shown and (text or "\n//" in "\n" + shown[-1]):
            shown.append("")
        shown.append(block)
    return textwrap.indent("\n".join(shown), "    ", lambda line: bool(line.strip()))


def entities(compounds: dict) -> dict:
    """header -> entities in the order of the file."""
    sources, found = {}, collections.defaultdict(list)

    def lines_of(header: str) -> list:
        if header not in sources:
            sources[header] = checks.read(f"include/{header}").splitlines()
        return sources[header]

    for compound in compounds.values():
        kind, name = compound.get("kind"), words(compound.find("compoundname"))
        if "::detail" in name:
            continue
        if kind == "namespace":
            for member in compound.iter("memberdef"):
                short = words(member.find("name"))
                if short.startswith("operator") or not short or "<" in short or name.split("::")[0] != "skein":
                    continue
                where = member.find("location")
                lines, line = lines_of(where.get("declfile") or where.get("file")), int(where.get("declline") or where.get("line"))
                text = comment_above(lines, line) or text_of(member)
                found[where.get("declfile") or where.get("file")].append(
                    Entity(f"{name}::{short}", member.get("kind"), line, signature_of(member), text, "", bool(text)))
            continue
        where = compound.find("location")
        outer = name.rsplit("::", 1)[0]
        nested = any(other.get("kind") in ("class", "struct") and words(other.find("compoundname")) == outer for other in compounds.values())
        if "<" in name or nested or not name.startswith("skein::") or not where.get("file", "").endswith(".hpp"):
            continue
        lines, line = lines_of(where.get("file")), int(where.get("line"))
        text = comment_above(lines, line) or text_of(compound)
        if kind == "concept":
            shown = textwrap.dedent("".join(compound.find("initializer").itertext())).strip()
            signature, members = re.sub(r"concept [\w:]+::", "concept ", shown, count=1), ""
        else:
            bases = ", ".join(words(base) for base in compound.findall("basecompoundref") if base.get("prot") == "public")
            signature = f"{template_of(compound)}{kind} {name.rsplit('::', 1)[1]}" + (f" : public {bases}" if bases else "")
            members = members_of(compound, lines)
        found[where.get("file")].append(Entity(name, kind, line, signature, text, members, bool(text)))
    return {header: sorted(of, key=lambda e: e.line) for header, of in found.items()}


# ---- Markdown ---------------------------------------------------------------------------------------
def prose(text: str) -> str:
    """A comment as Markdown: indented lines and tables stay as they are, the rest are paragraphs."""
    blocks, kind = [], None
    for line in text.splitlines():
        if not line.strip():
            kind = None
            continue
        this = "table" if line.startswith(" ") and kind == "table" else "code" if line.startswith("    ") else "table" if line.startswith(("  ", "- ")) else "text"
        if this != kind:
            blocks.append((this, []))
            kind = this
        blocks[-1][1].append(line)
    shown = []
    for this, lines in blocks:
        body = textwrap.dedent("\n".join(lines))
        if this == "text":
            shown.append(re.sub(r"([\\*_\[\]<>#|$~])", r"\\\1", html.unescape(body)) if "`" not in body else escape_outside_code(body))
        else:
            shown.append(f"```{'cpp' if this == 'code' else 'text'}\n{body}\n```")
    return "\n\n".join(shown)


def escape_outside_code(text: str) -> str:
    return "".join(part if index % 2 else re.sub(r"([\\*_\[\]<>#|$~])", r"\\\1", part) for index, part in enumerate(re.split(r"(`[^`]*`)", text)))


def opening_comment(path: str) -> str:
    found = []
    for line in checks.read(path).splitlines()[1:]:
        if line.startswith("#pragma"):
            continue
        if not line.startswith("//"):
            break
        found.append(re.sub(r"^// ?", "", line))
    return "\n".join(found)


def page(path: str, name: str, of: list) -> str:
    layer = name.split("/")[0]
    # Not in a table of contents: the sidebar of every page would hold all of them.
    shown = ["---\norphan: true\n---", f"# {name}", f"[Reference](../index.md) / [{layer}](index.md)", f"```cpp\n#include <skein/{name}>\n```", prose(opening_comment(path))]
    groups = {}
    for entity in of:
        groups.setdefault(entity.name, []).append(entity)
    for full, overloads in groups.items():
        shown.append(f"## {full.removeprefix('skein::')}".replace("<", "\\<"))
        for entity in overloads:
            body = f" {{\n{entity.members}\n}};" if entity.members else "" if entity.kind == "concept" else ";"
            shown += [prose(entity.text), f"```cpp\n{entity.signature}{body}\n```"]
    return "\n\n".join(part for part in shown if part) + "\n"


def write(folder: str, by_header: dict) -> None:
    order = checks.rules()["layers"]
    index = ["# Reference", "One page per public header. `<skein/skein.hpp>` has all up to `cluster`, `<skein/train.hpp>` has all; "
             "each layer has a header of its name, as `<skein/core.hpp>`."]
    for layer in order:
        headers = sorted((name, path) for path, name, of in checks.public_headers() if of == layer)
        os.makedirs(os.path.join(folder, layer), exist_ok=True)
        rows = []
        for name, path in headers:
            stem = name[:-len(".hpp")]
            with open(os.path.join(folder, stem + ".md"), "w", encoding="utf-8") as file:
                file.write(page(path, name, by_header.get(f"skein/{name}", [])))
            rows.append(f"- [{name}]({stem}.md): {prose(code_map.first_sentence(checks.read(path)))}")
        with open(os.path.join(folder, layer, "index.md"), "w", encoding="utf-8") as file:
            file.write("\n\n".join([f"# {layer}", f"```cpp\n#include <skein/{layer}.hpp>\n```",
                                    "\n".join(row.replace(f"]({layer}/", "](") for row in rows)]) + "\n")
        index.append(f"## {layer}\n\n" + "\n".join(rows))
    index.append("\n".join(["```{toctree}", ":hidden:", "", *(f"{layer}/index" for layer in order), "```"]))
    with open(os.path.join(folder, "index.md"), "w", encoding="utf-8") as file:
        file.write("\n\n".join(index) + "\n")


def missing(by_header: dict) -> list:
    """(header, line, name) of what has no text; a text at one overload is one for all."""
    told = {entity.name for of in by_header.values() for entity in of if entity.documented}
    found, seen = [], set()
    for header, of in sorted(by_header.items()):
        for entity in of:
            if entity.name not in told and entity.name not in seen:
                seen.add(entity.name)
                found.append((header, entity.line, f"{entity.kind} {entity.name}"))
    return found


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in ("--missing", "--write") or len(sys.argv) != 2 + (sys.argv[1] == "--write"):
        print(__doc__)
        return 2
    if not shutil.which("doxygen"):
        print("no doxygen: install the package of that name, or run scripts/setup --docs")
        return 77
    with tempfile.TemporaryDirectory(prefix="skein-api-") as scratch:
        by_header = entities(doxygen(scratch))
    if sys.argv[1] != "--missing":
        write(sys.argv[2], by_header)
        return 0
    count = len({entity.name for of in by_header.values() for entity in of})
    if not count:
        print("no public entity found: is this doxygen's XML?")
        return 1
    problems = [f"include/{header}:{line}: {what} has no text; say above it, with ///, what it is" for header, line, what in missing(by_header)]
    return checks.report(problems, f"{count} public entities, {len(problems)} without a text")


if __name__ == "__main__":
    sys.exit(main())

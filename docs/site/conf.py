# SPDX-License-Identifier: Apache-2.0
# How Sphinx builds the site: scripts/docs gives it a copy of docs/ with the reference pages in docs/api/.
import os
import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
with open(os.path.join(ROOT, "include/skein/core/config.hpp"), encoding="utf-8") as file:
    numbers = dict(re.findall(r"define SKEIN_VERSION_(MAJOR|MINOR|PATCH) (\d+)", file.read()))

project = "skein"
version = release = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))
copyright = "the authors of skein, Apache-2.0"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["site"]
myst_heading_anchors = 3
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]   # `...` in a signature is no C++

html_theme = "furo"
html_title = f"skein {release}"
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_static_path = ["static"]
html_css_files = ["skein.css"]

PAGE = re.compile(r"docs/([\w/.-]+)\.md$")
HEADER = re.compile(r"<?(?:include/)?(?:skein/)?(\w+/\w+)\.hpp>?$")   # what has no page is no link


class NamesBecomeLinks(SphinxTransform):
    """`docs/wire.md` and `core/scope.hpp` in a text lead to their pages. A page that is not there is a warning."""
    default_priority = 500

    def apply(self, **kwargs) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            page, header = PAGE.match(text), HEADER.match(text)
            inside = literal.parent
            while inside is not None and not isinstance(inside, (nodes.reference, pending_xref, nodes.title)):
                inside = inside.parent
            target = page.group(1) if page else "api/" + header.group(1) if header else ""
            if inside is not None or not target or target not in self.env.found_docs and not page:
                continue
            link = pending_xref("", refdomain="std", reftype="doc", reftarget="/" + target, refexplicit=True, refwarn=True,
                                refdoc=self.env.current_document.docname)
            link.source, link.line = literal.source, literal.line
            literal.replace_self(link)
            link += literal


HEADER_LINK = re.compile(r"^\[`(\w+/(?:detail/)?\w+)\.hpp`\]: "
                         r"((?:\.\./)+)include/skein/\1\.hpp\n", re.M)


def lead_to_the_reference(app, name: str, source: list) -> None:
    """Links that scripts/code_map.py has written lead to the reference, or, of details, to the file."""
    def lead(link: re.Match) -> str:
        header, up = link.groups()
        if os.path.exists(os.path.join(app.srcdir, "api", header + ".md")):
            return f"[`{header}.hpp`]: {up[len('../'):]}api/{header}.md\n"
        file = os.path.join(ROOT, "include/skein", header + ".hpp")
        return link.group(0) if os.path.exists(file) else ""
    source[0] = HEADER_LINK.sub(lead, source[0])


def setup(app) -> dict:
    app.add_transform(NamesBecomeLinks)
    app.connect("source-read", lead_to_the_reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

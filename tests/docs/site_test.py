#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds, and a browser that knows no other host finds its pages and searches in them.

Chromium loads every page from a server of this test. It must show the page's title and ask nobody else for anything. A
search finds pages. An example that has lost a region that a page shows makes scripts/docs fail and say so.
"""
import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDER = os.path.join(os.environ.get("SKEIN_BUILD_ROOT") or os.path.join(SOURCE, "build"), "docs")
TOUR = """<!doctype html><title>tour</title><body><script>
const load = url => new Promise(done => {
    const frame = document.createElement('iframe');
    frame.onload = () => done(frame);
    frame.src = url;
    document.body.append(frame);
});
const asked = frame => frame.contentWindow.performance.getEntriesByType('resource').map(e => e.name);
(async () => {
    const found = {pages: [], asked: []};
    for (const url of PAGES) {
        const frame = await load(url), page = frame.contentDocument;
        const heading = page.querySelector('h1');
        found.pages.push([url, page.title, heading ? heading.textContent : '']);
        found.asked.push(...asked(frame));
        frame.remove();
    }
    const frame = await load('/search.html?q=permutation');
    const results = () => [...frame.contentDocument.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'));
    for (let tries = 0; tries < 200 && !results().some(href => href.includes('core/permutation')); ++tries)
        await new Promise(done => setTimeout(done, 50));
    found.search = results();
    found.asked.push(...asked(frame));
    found.asked = [...new Set(found.asked)];
    document.body.textContent = 'FOUND' + JSON.stringify(found) + 'END';
})();
</script>"""


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


def build(root: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([os.path.join(root, "scripts", "docs")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**os.environ, **environment})


class Handler(http.server.SimpleHTTPRequestHandler):
    """The site, and the page that looks at all others."""
    tour = b""

    def do_GET(self) -> None:   # noqa: N802
        if self.path != "/tour-of-the-test.html":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.tour)

    def log_message(self, *_: object) -> None:
        pass


def look_at(site: str, chromium: str, pages: list) -> dict:
    Handler.tour = TOUR.replace("PAGES", json.dumps(pages)).encode()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server, \
            tempfile.TemporaryDirectory(prefix="skein-site-") as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
                               "--disable-component-update", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                               f"--user-data-dir={profile}", "--virtual-time-budget=3600000", "--dump-dom",
                               f"http://127.0.0.1:{server.server_address[1]}/tour-of-the-test.html"],
                              capture_output=True, text=True, timeout=600, check=False)
        server.shutdown()
        found = re.search(r"FOUND(.*)END", done.stdout, re.S)
        assert found, f"chromium ended with {done.returncode} and told nothing:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        seen = json.loads(html.unescape(found.group(1)))
        seen["host"] = f"http://127.0.0.1:{server.server_address[1]}/"
        return seen


def heading_of(page: str) -> str:
    """The title that the source of a page has."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    found = re.search(r"^# (.+)$", text, re.M)
    return re.sub(r"[\\`]", "", found.group(1)).strip() if found else ""


def check_pages(chromium: str) -> None:
    site = os.path.join(FOLDER, "site")
    pages = ["/" + os.path.relpath(os.path.join(at, name), site) for at, _, names in os.walk(site) for name in sorted(names) if name.endswith(".html")]
    assert len(pages) > 150, pages
    seen = look_at(site, chromium, pages)
    assert len(seen["pages"]) == len(pages)
    checked = 0
    for url, title, heading in seen["pages"]:
        assert title.strip(), f"{url} has no title"
        source = os.path.join(FOLDER, "source", "docs", url[1:-len(".html")] + ".md")
        if os.path.exists(source) and heading_of(source):
            assert heading.startswith(heading_of(source)), f"{url}: {heading!r} is not {heading_of(source)!r}"
            assert heading_of(source).split()[0] in title, f"{url}: {title!r}"
            checked += 1
    assert checked > 150, checked
    others = [name for name in seen["asked"] if not name.startswith((seen["host"], "data:"))]
    assert not others, f"asked other hosts: {others}"
    assert any("api/core/permutation.html" in found for found in seen["search"]), f"a search for permutation found {seen['search']}"
    print(f"{len(pages)} pages, {checked} titles as in their sources, {len(seen['search'])} found by a search, {len(seen['asked'])} files asked for")


def check_lost_region() -> None:
    with tempfile.TemporaryDirectory(prefix="skein-docs-") as scratch:
        root = os.path.join(scratch, "skein")
        shutil.copytree(SOURCE, root, ignore=shutil.ignore_patterns("build", "build-*", ".git", "runs", ".cache", "__pycache__"))
        os.makedirs(os.path.join(root, "build", "docs"))
        os.symlink(os.path.join(FOLDER, "venv"), os.path.join(root, "build", "docs", "venv"))
        example = os.path.join(root, "examples", "050_many_tasks.cpp")
        with open(example, encoding="utf-8") as file:
            text = file.read()
        assert "// [race]" in text
        with open(example, "w", encoding="utf-8") as file:
            file.write(re.sub(r"// \[race\].*?// \[/race\]\n", "", text, flags=re.S))
        done = build(root, SKEIN_BUILD_ROOT=os.path.join(root, "build"))
        assert done.returncode != 0, "scripts/docs did not notice that an example lost a region"
        assert "03-many-tasks.md" in done.stdout and "[race]" in done.stdout, done.stdout[-3000:]


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not shutil.which("doxygen"):
        skip("no doxygen; scripts/docs --setup installs it")
    if not os.path.exists(os.path.join(FOLDER, "venv", "skein-complete")):
        skip(f"no {FOLDER}/venv; scripts/docs --setup makes it")
    if not chromium:
        skip("no chromium; scripts/docs --setup installs it where the system has it")
    done = build(SOURCE)
    print(done.stdout)
    assert done.returncode == 0, "scripts/docs failed"
    check_pages(chromium)
    check_lost_region()


if __name__ == "__main__":
    main()

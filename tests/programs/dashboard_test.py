#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of a head in Chromium, before a server that only has what the page is to show.

    dashboard_test.py [PICTURES]      a folder for pictures of every page, in both colours

By events: the page says what it shows. It asks no other host, and the console has nothing to complain about.
"""
# label: runtime
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from browser import Browser  # noqa: E402
from program import environment, find_program, skip  # noqa: E402

PICTURES = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([find_program("skein_dashboard"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        self.site = self.process.stdout.readline().strip()
        self.links = [self.process.stdout.readline().strip() for _ in range(4)]
        assert self.site.startswith("http://127.0.0.1:"), self.site

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


def show(browser, server, page):
    browser.value(f"location.hash = '#/{page}'")
    key = page if "/" in page else page + "/"
    browser.wait_for(f"document.body.dataset.ready === '{key}'")
    return browser.value("document.getElementById('page').innerText")


def picture(browser, name):
    if PICTURES:
        browser.picture(str(PICTURES / f"{name}.png"))


def check_clean(browser, server):
    others = [url for url in browser.asked() if not url.startswith(server.site)]
    assert not others, f"asked other hosts: {others}"
    complaints = browser.complaints()
    assert not complaints, complaints


def check_data(dark):
    with Server() as server, Browser(dark=dark) as browser:
        browser.open(server.links[0])
        browser.wait_for("document.body.dataset.ready === 'overview/'")
        assert browser.value("location.pathname") == "/", "the login link leads to the page"
        colour = "dark" if dark else "light"
        text = browser.value("document.getElementById('page').innerText")
        for word in ("node-1", "draining", "train-7", "RUNNING", "FAILED", "16 / 48", "2 ready"):
            assert word in text, f"{word!r} is not on the overview:\n{text}"
        assert "<b>exit code 3</b>" in text and "<script>" in text, f"texts of a cluster are text:\n{text}"
        browser.wait_for("document.getElementById('link').textContent === 'live'")
        picture(browser, f"overview-{colour}")

        text = show(browser, server, "job/train-7")
        for word in ("Loss", "Learning rate", "Step time", "Tokens per second", "Evaluation loss", "node-2", "killed by signal 9", "Time left", "2 min 8 s", "of 1,000", "4.7 steps/s", "39,120 tokens/s", "of 4", "Epoch", "Ranks"):
            assert word in text, f"{word!r} is not on the page of the job:\n{text}"
        # Curves: one per column, with ticks, and a mark where the training went back to its checkpoint.
        assert browser.value("document.querySelectorAll('.chart svg path.curve').length") == 5
        assert browser.value("[...document.querySelectorAll('.chart svg')].every((s) => s.querySelectorAll('text').length >= 7)")
        assert browser.value("document.querySelector('.chart svg .mark') !== null")
        path = browser.value("document.querySelector('.chart svg path.curve').getAttribute('d')")
        assert path.count("L") > 300 and path.count("M") == 2 and "NaN" not in path, path[:200]
        # The feed goes on: the page shows the next rows by itself.
        label = browser.value("document.querySelector('.chart').getAttribute('aria-label')")
        browser.wait_for(f"document.querySelector('.chart').getAttribute('aria-label') !== {label!r}")
        picture(browser, f"job-{colour}")

        text = show(browser, server, "job/prep-3")
        assert "FAILED" in text and "No rows yet" in text, text
        text = show(browser, server, "nodes")
        assert "20 GiB / 64 GiB" in text and re.search(r"\d+ %", text) and "196 GiB / 500 GiB" in text and re.search(r"B/s, .*B/s", text), text
        sparks = "[...document.querySelectorAll('svg.spark path')].map((p) => p.getAttribute('d'))"
        first = browser.value(sparks)
        assert len(first) == 3 * 5 and all(d.count("L") > 20 and "NaN" not in d for d in first), first   # cpu, memory, in and out, disk
        browser.wait_for(f"JSON.stringify({sparks}) !== {json.dumps(json.dumps(first, separators=(',', ':')))}")
        picture(browser, f"nodes-{colour}")

        # One node: a line for each of cpu, memory, network, disk; the next second comes by itself.
        text = show(browser, server, "nodes/node-1")
        for word in ("Node node-1", "CPU", "Memory", "Network in", "Network out", "Disk", "the last 10 min"):
            assert word in text, f"{word!r} is not on the page of the node:\n{text}"
        paths = browser.value("[...document.querySelectorAll('.chart svg path.curve')].map((p) => p.getAttribute('d'))")
        assert len(paths) == 5 and all(d.count("L") > 400 and d.count("M") == 1 and "NaN" not in d for d in paths), [d[:80] for d in paths]
        label = browser.value("document.querySelector('.chart').getAttribute('aria-label')")
        assert re.search(r"CPU, 60\d points, last \d+ % at time \d\d:\d\d:\d\d", label), label
        browser.wait_for(f"document.querySelector('.chart').getAttribute('aria-label') !== {label!r}")
        picture(browser, f"node-{colour}")
        text = show(browser, server, "tasks")
        assert "tokenize" in text and "48,210" in text and "There are no actors" in text and "map_reduce" in text and "48,330" in text, text
        picture(browser, f"tasks-{colour}")
        text = show(browser, server, "logs/train-7")
        assert "step 400 loss" in text and "<img src=x onerror" in text, text[:500]
        browser.value("(() => { const f = document.querySelector('input[type=search]'); f.value = 'step 399 '; f.dispatchEvent(new Event('input')); })()")
        assert browser.value("document.querySelector('pre.log').textContent").startswith("step 399 loss"), "the filter does not filter"
        picture(browser, f"logs-{colour}")
        assert browser.value("document.title").endswith("skein"), "a text of the cluster ran as a script"
        check_clean(browser, server)

        show(browser, server, "job/none")
        assert "there is no job none: skein job list" in browser.value("document.getElementById('fault').innerText")


def check_empty():
    with Server("--empty") as server, Browser() as browser:
        browser.open(server.links[0])
        browser.wait_for("document.body.dataset.ready === 'overview/'")
        for page, word in (("overview", "No job has been submitted"), ("job", "No job has been submitted"), ("nodes", "No node has joined"), ("tasks", "There are no actors"),
                           ("logs", "No job has been submitted")):
            text = show(browser, server, page)
            assert word in text, f"{page}:\n{text}"
            picture(browser, f"empty-{page}")
        check_clean(browser, server)


def check_many():
    """A hundred nodes, and names that are markup, paths, or very long: the page stays a page, and what it takes is bounded."""
    with Server("--nodes", "100", "--rubbish") as server, Browser() as browser:
        browser.open(server.links[0])
        browser.wait_for("document.body.dataset.ready === 'overview/'")
        picture(browser, "many-overview")
        text = show(browser, server, "nodes")
        assert text.count("GiB / 64 GiB") == 100 and "<img src=x onerror" in text and "&amp;" in text, text[:500]
        assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
        picture(browser, "many-nodes")
        # Everything here changes each second; what a viewer costs stays below 20 KB/s all the same.
        browser.wait_for("document.querySelectorAll('svg.spark').length === 400")
        browser.value("new Promise((over) => setTimeout(over, 15000))")    # what it takes first is behind it
        begin = time.monotonic()
        browser.events.clear()
        browser.value("new Promise((over) => setTimeout(over, 20000))")
        taken = sum(e["params"]["dataLength"] + 300 for e in browser.events if e.get("method") == "Network.dataReceived") / (time.monotonic() - begin)
        assert 500 < taken < 20000, f"{taken:.0f} bytes a second"
        browser.value("document.querySelector('td a').click()")
        browser.wait_for("document.getElementById('page').innerText.includes('Node <img src=x onerror')")
        browser.value("location.hash = '#/nodes'")
        browser.wait_for("document.querySelectorAll('td a').length === 100")
        browser.value("document.querySelectorAll('td a')[1].click()")
        browser.wait_for("document.getElementById('page').innerText.includes('Node \"')")
        assert browser.value("document.querySelectorAll('.chart').length") == 5
        assert browser.value("document.title").endswith("skein"), "the name of a node ran as a script"
        check_clean(browser, server)


def check_doors():
    """Without a key the page says how to get one; when the head ends, that it does not answer; a login link works once."""
    server = Server()
    with Browser(width=500) as browser:
        browser.open(server.site)
        browser.wait_for("document.body.dataset.ready === 'overview/'")
        assert "skein dashboard" in browser.value("document.getElementById('fault').innerText")
        assert "train-7" not in browser.value("document.body.innerText")
        picture(browser, "no-key")
        browser.open(server.links[0])
        browser.wait_for("document.getElementById('page').innerText.includes('train-7')")
        picture(browser, "narrow")
        assert browser.value("document.cookie") == "", "a script can read the cookie"
        browser.open(server.links[0])
        browser.wait_for("document.body.innerText.includes('this link has been used')")
        browser.open(server.site)
        browser.wait_for("document.getElementById('link').textContent === 'live'")
        server.stop()
        browser.wait_for("document.getElementById('fault').innerText.includes('the head does not answer')")
        browser.wait_for("document.getElementById('link').textContent !== 'live'")
        picture(browser, "head-gone")


def main():
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        skip("no chromium; scripts/docs --setup installs it where the system has it")
    if PICTURES:
        PICTURES.mkdir(parents=True, exist_ok=True)
    for dark in (False, True):
        check_data(dark)
    check_empty()
    check_many()
    check_doors()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of a head in Chromium, before a server that only has what the page is to show.

    dashboard_test.py [PICTURES]            a folder for pictures of every page, in both colours
    dashboard_test.py --docs docs/pictures  makes the pictures of docs/dashboard.md anew

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
from jobs_test import Jobs  # noqa: E402
from program import environment, find_program, skip  # noqa: E402

DOCS = pathlib.Path(sys.argv[2]) if sys.argv[1:2] == ["--docs"] else None
PICTURES = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 and not DOCS else None


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
        for word in ("node-1", "draining", "train-7", "RUNNING", "FAILED", "ann@desk", "16 / 48", "given / there; 16 more are missing", "2 ready, 1 missing"):
            assert word in text, f"{word!r} is not on the overview:\n{text}"
        assert "<b>exit code 3</b>" in text and "<script>" in text, f"texts of a cluster are text:\n{text}"
        browser.wait_for("document.getElementById('link').textContent === 'live'")
        picture(browser, f"overview-{colour}")

        text = show(browser, server, "job/train-7")
        for word in ("Loss", "Learning rate", "Step time", "Tokens per second", "Evaluation loss", "node-2", "killed by signal 9", "Time left", "2 min 8 s", "of 1,000", "4.7 steps/s", "39,120 tokens/s", "of 4", "Worlds", "worker 2 (pid 7) was killed", "Epoch", "Ranks"):
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
        assert "FAILED" in text and "This job has no training" in text, text
        check_broken(browser, server)
        check_waiting(browser, server)
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
        assert "48,210" in text and "map_reduce" in text and "48,330" in text, text
        refused = [url for url in browser.asked() if url.endswith(("/functions", "/actors"))]
        assert not refused, f"what no head has is asked for: {refused}"
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


def check_broken(browser, server):
    """A loss that is NaN is NaN everywhere; columns with commas in their names have their own curves; why the training stopped."""
    text = show(browser, server, "job/broken-8")
    for word in ("NaN", "the training has diverged", 'val_a,"val_b"', "stopped", "early stopping: val_loss has not improved", "bob@desk", "NaN from step 90", "inf from step 88"):
        assert word in text, f"{word!r} is not on the page of a broken training:\n{text}"
    labels = browser.value("[...document.querySelectorAll('.chart')].map((c) => c.getAttribute('aria-label'))")
    assert "Loss, 89 points and 31 that are not finite, last NaN at step 120" in labels, labels
    assert browser.value("document.querySelectorAll('.chart svg path.broken').length") > 4
    paths = browser.value("[...document.querySelectorAll('.chart svg path')].map((p) => p.getAttribute('d'))")
    assert not any("NaN" in d or "Infinity" in d for d in paths), paths
    assert browser.value("document.querySelector('.tile b.bad').textContent") == "NaN"
    picture(browser, "broken")


def check_waiting(browser, server):
    """A job that waits has no attempt; nothing of the page before stands under a new address."""
    text = show(browser, server, "job/wait-9")
    assert "It does not run yet" in text and "Waiting for" in text and "Attempt" not in text and "Step" not in text, text
    script = "new Promise((seen) => { addEventListener('hashchange', () => seen(document.getElementById('page').innerText), { once: true }); location.hash = '#/tasks'; })"
    text = browser.value(script)
    assert "wait-9" not in text and "Loading" in text, f"what belongs to another page stands under a new address:\n{text}"


def check_tables():
    """A click on a title sorts, the other way, and as it was; a box finds; both stay when the page draws anew. The rest of a long list is asked for."""
    with Server() as server, Browser(width=1280) as browser:
        browser.open(server.links[0])
        browser.wait_for("document.querySelectorAll('td a').length > 0")
        first = "[...document.querySelectorAll('table')[0].querySelectorAll('tbody tr')].map((r) => r.cells[0].textContent)"
        as_it_came = browser.value(first)
        assert as_it_came == ["wait-9", "broken-8", "train-7", "prep-3"], as_it_came
        click = "[...document.querySelectorAll('table')[0].querySelectorAll('button.sort')].find((b) => b.textContent.startsWith('Job')).click()"
        browser.value(click)
        assert browser.value(first) == sorted(as_it_came), browser.value(first)
        browser.value(click)
        assert browser.value(first) == sorted(as_it_came, reverse=True), browser.value(first)
        label = browser.value("document.body.dataset.ready") and browser.value("document.querySelectorAll('table')[0].rows[1].cells.length")
        browser.value("document.querySelectorAll('table')[0].dataset.old = '1'")
        browser.wait_for("document.querySelectorAll('table')[0].dataset.old !== '1'")    # drawn anew
        assert browser.value(first) == sorted(as_it_came, reverse=True) and label, "the order is lost when the page draws anew"
        browser.value(click)
        assert browser.value(first) == as_it_came
        browser.value("(() => { const f = document.querySelector('input[type=search]'); f.focus(); f.value = 'BOB'; f.setSelectionRange(1, 2); f.dispatchEvent(new Event('input')); })()")
        assert browser.value(first) == ["wait-9", "broken-8"], browser.value(first)
        browser.value("document.querySelectorAll('table')[0].dataset.old = '1'")
        browser.wait_for("document.querySelectorAll('table')[0].dataset.old !== '1'")
        assert browser.value(first) == ["wait-9", "broken-8"], "what was looked for is lost when the page draws anew"
        assert browser.value("[document.activeElement.value, document.activeElement.selectionStart, document.activeElement.selectionEnd]") == ["BOB", 1, 2], "the caret is lost"
        assert any(url.endswith("&find=BOB") for url in browser.asked()), "the head is not asked for jobs that are not in the list"
        text = browser.value("document.getElementById('page').innerText")
        assert "1,201" in text, f"jobs are counted by what is shown, not by what there is:\n{text}"
        check_clean(browser, server)


def check_lines():
    """Colours, and bars that draw over themselves, look as on a terminal; what else a line has is text or nothing."""
    with Server() as server, Browser(width=1280) as browser:
        browser.open(server.links[0])
        show(browser, server, "logs/broken-8")
        lines = browser.value("document.querySelector('pre.log').textContent").split("\n")
        assert lines == ["ERROR: amber and ink <b>plain</b>", "100%|#####| 3/3", "short  34%", "hidden cursor, title, bell", "zero \\x00 and green to the end", "still green <img src=x onerror=document.title=4>"], lines
        of = "[...document.querySelectorAll('pre.log span')].map((e) => [e.textContent, e.className, e.style.color])"
        assert browser.value(of) == [["ERROR", "bold ink-1", ""], ["amber", "", "rgb(255, 135, 0)"], ["ink", "", "rgb(1, 2, 3)"], ["green to the end", "ink-2", ""], ["still green", "ink-2", ""]], browser.value(of)
        assert browser.value("document.querySelectorAll('pre.log img, pre.log b').length") == 0
        look_for = "(() => {{ const f = document.querySelector('input[type=search]'); f.value = {!r}; f.dispatchEvent(new Event('input')); }})()"
        browser.value(look_for.format("still"))    # in the colour that a line before has set
        assert browser.value(of) == [["still green", "ink-2", ""]] and browser.value("document.querySelector('pre.log').textContent").startswith("still green"), browser.value(of)
        browser.value(look_for.format(""))
        link = browser.value("[...document.querySelectorAll('a[download]')].map((a) => [a.getAttribute('href'), a.getAttribute('download')])")
        assert link == [["/api/v1/jobs/broken-8/log", "broken-8.log"]], link
        picture(browser, "colours")
        check_clean(browser, server)


def check_stop():
    """Who may only look has no button; who may stop is asked once more, and the job stops."""
    with Server() as server:
        with Browser() as browser:
            browser.open(server.links[0])
            assert "Job train-7" in show(browser, server, "job/train-7")
            assert not browser.value("[...document.querySelectorAll('button')].some((b) => b.textContent.includes('stop'))"), "who may only look has a button"
        with Browser() as browser:
            browser.open(server.links[3])
            button = "[...document.querySelectorAll('button')].find((b) => b.textContent === '{}')"
            show(browser, server, "job/train-7")
            browser.value(button.format("stop") + ".click()")
            browser.wait_for(button.format("let it run"))
            assert "Stop train-7?" in browser.value("document.getElementById('page').innerText")
            browser.value(button.format("let it run") + ".click()")
            browser.wait_for(button.format("stop"))
            assert "RUNNING" in browser.value("document.querySelector('h1').textContent")
            browser.value(button.format("stop") + ".click()")
            browser.wait_for(button.format("stop it"))
            browser.value(button.format("stop it") + ".click()")
            browser.wait_for("document.querySelector('h1').textContent.includes('STOPPED')")
            assert not browser.value(button.format("stop")), "one that has ended has a button"
            check_clean(browser, server)


def check_sizes():
    """Every page at the size of a desk and of a phone: no wider than the window, nothing in the console; pictures for the documentation."""
    for width, height in ((1280, 800), (400, 800)):
        with Server() as server, Browser(width=width, height=height) as browser:
            browser.open(server.links[0])
            for name, page in (("overview", "overview"), ("job", "job/train-7"), ("broken", "job/broken-8"), ("waits", "job/wait-9"), ("nodes", "nodes"), ("node", "nodes/node-1"),
                               ("tasks", "tasks"), ("logs", "logs/broken-8")):
                show(browser, server, page)
                assert browser.value("document.documentElement.scrollWidth <= innerWidth"), f"{page} is {browser.value('document.documentElement.scrollWidth')} px wide in a window of {width}"
                if DOCS and page == "nodes":
                    browser.wait_for("document.querySelectorAll('svg.spark').length >= 12")
                if DOCS and name in (("overview", "job", "broken", "nodes", "node", "logs") if width == 1280 else ("overview", "job")):
                    browser.picture(str(DOCS / f"dashboard-{name}{'' if width == 1280 else '-narrow'}.png"))
            check_clean(browser, server)


def check_real():
    """The page of a real head: every tab without an error, a job that is stopped by its button, NaN that a job has written."""
    with Jobs([("n1", [])]) as c:
        folder = c.folder_of("real", "mkdir -p runs/a; printf 'step,loss\\n1,3\\n2,nan\\n' > runs/a/new; mv runs/a/new runs/a/metrics.csv; printf '\\033[32mgreen\\033[0m\\n'; sleep 1000")
        c.job("submit", "--id", "real", "--no-wait", "--working-dir", folder, "--", "./run.sh")
        c.job("submit", "--id", "plain", "--", "true")
        code, out, err = c.tool("dashboard", c.address)
        assert code == 0, (out, err)
        link = re.search(r"http://\S+", out).group(0)
        with Browser(width=1280) as browser:
            browser.open(link)
            browser.wait_for("document.body.dataset.ready === 'overview/'")
            for page, word in (("overview", "plain"), ("job/plain", "This job has no training"), ("nodes", "n1"), ("nodes/n1", "Node n1"), ("tasks", "Programs"), ("logs/real", "green"), ("job/real", "Job real")):
                show(browser, None, page)
                browser.wait_for(f"document.getElementById('page').innerText.includes({word!r})")
            browser.wait_for("document.querySelector('.tile b.bad')")
            assert "NaN from step 2" in browser.value("document.getElementById('page').innerText")
            button = "[...document.querySelectorAll('button')].find((b) => b.textContent === '{}')"
            browser.wait_for(button.format("stop"))
            browser.value(button.format("stop") + ".click()")
            browser.wait_for(button.format("stop it"))
            browser.value(button.format("stop it") + ".click()")
            c.until("real", "STOPPED")
            browser.wait_for("document.querySelector('h1').textContent.includes('STOPPED')")
            complaints = browser.complaints()
            assert not complaints, complaints
        c.end()


def check_empty():
    with Server("--empty") as server, Browser() as browser:
        browser.open(server.links[0])
        browser.wait_for("document.body.dataset.ready === 'overview/'")
        for page, word in (("overview", "No job has been submitted"), ("job", "No job has been submitted"), ("nodes", "No node has joined"), ("tasks", "No program runs on this cluster"),
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
    if DOCS:
        return check_sizes()
    for dark in (False, True):
        check_data(dark)
    check_tables()
    check_lines()
    check_stop()
    check_real()
    check_sizes()
    check_empty()
    check_many()
    check_doors()


if __name__ == "__main__":
    main()

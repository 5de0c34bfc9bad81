#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an open page of a head costs at many real nodes: bytes of answers a second, processor time and memory of the head.

    SKEIN_BUILD_DIR=build/clang python3 bench/open_page.py [NODES] [SECONDS]

Nodes are agents of this host (100 by default). A job prints a line and writes a row five times a second meanwhile, so
that something is new all the time. One JSON line per page.
"""
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "programs"))
from browser import Browser  # noqa: E402
from http_api_test import Api  # noqa: E402

NODES = int(sys.argv[1]) if len(sys.argv) > 1 else 100
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20
PAGES = ("overview", "nodes", "nodes/node-001", "job/train", "logs/train", "tasks")
TRAIN = """mkdir -p runs/a
echo step,loss,lr > runs/a/metrics.csv
i=0
while true; do i=$((i+1)); echo $i,0.$i,0.001 >> runs/a/metrics.csv; echo step $i loss 0.$i; sleep 0.2; done
"""


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    line = next(one for one in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def measure(pid, what, browser=None):
    if browser:
        browser.value("1")
        browser.events.clear()
    begin, used = time.monotonic(), processor_seconds(pid)
    while time.monotonic() < begin + SECONDS:
        time.sleep(0.5)
        if browser:
            browser.value("1")    # its events are read
    passed = time.monotonic() - begin
    found = {"page": what, "head_cpu_percent": round(100 * (processor_seconds(pid) - used) / passed, 2), "head_mib": round(resident_mib(pid), 1)}
    if browser:
        ended = [e["params"]["encodedDataLength"] for e in browser.events if e.get("method") == "Network.loadingFinished"]
        found |= {"kb_per_s": round(sum(ended) / passed / 1000, 2), "requests_per_s": round(len(ended) / passed, 2)}
    print(json.dumps({"nodes": NODES} | found), flush=True)


def main():
    with Api([(f"node-{i:03}", []) for i in range(NODES)]) as c:
        pid = c.head.process.pid
        c.get_when("/api/v1/samples", lambda s: len(s["nodes"]) == NODES, "samples of all nodes")
        measure(pid, "none")
        c.job("submit", "--id", "train", "--no-wait", "--working-dir", c.folder_of("load", TRAIN), "--", "./run.sh")
        c.until("train", "RUNNING")
        with Browser() as browser:
            browser.open(c.tool("dashboard", c.address)[1].strip())
            browser.wait_for("document.body.dataset.ready === 'overview/'")
            for page in PAGES:
                browser.value(f"location.hash = '#/{page}'")
                browser.wait_for(f"document.body.dataset.ready === '{page if '/' in page else page + '/'}'")
                time.sleep(15)    # behind it is what a page takes first
                measure(pid, page, browser)
        c.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""Rows made by threads and helpers are the same bytes, whatever becomes of the helpers.

SKEIN_DATA_MATRIX=full tries every combination of ranks, threads, helpers and what becomes of them (minutes); without it
a choice that has every pair of ranks, threads and helpers.
"""
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_test import Cluster  # noqa: E402
PROGRAM = os.path.join(os.environ["SKEIN_BUILD_DIR"], "tests", "programs", "data_rows")


def arguments(**options) -> list:
    return [PROGRAM, *(word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value)))]


def run(**options) -> subprocess.CompletedProcess:
    return subprocess.run(arguments(**options), capture_output=True, text=True, timeout=120, check=False)


def found(text: str, what: str) -> str:
    match = re.search(rf"^{what} (\S+)$", text, re.M)
    assert match, text
    return match.group(1)


def children(pid: int) -> list:
    """Of all its threads: a thread of its own starts the workers."""
    found_here = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            found_here += [int(word) for word in file.read().split()]
    return found_here


def busiest(pids: list) -> int:
    """The helper: workers that wait have used no time."""
    def used(pid: int) -> int:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])
        except OSError:
            return -1
    return max(pids, key=used)


class Data(unittest.TestCase):
    def test_threads_and_helpers_make_the_same_rows(self):
        wanted = run(epochs=2)
        self.assertEqual(wanted.returncode, 0, wanted.stderr)
        for options in ({"threads": 2}, {"threads": 7}, {"helpers": 1}, {"helpers": 2, "threads": 2}, {"helpers": 1, "cpus": 2}):
            with self.subTest(options):
                got = run(epochs=2, row_us=100, local_us=5000, **options)
                self.assertEqual(got.returncode, 0, got.stderr)
                for what in ("rows", "sha256"):
                    self.assertEqual(found(got.stdout, what), found(wanted.stdout, what))
                if "helpers" in options:
                    self.assertRegex(got.stdout, r"\d+@\S+ +[1-9]\d* rows", "a helper made some")

    def hurt_a_helper(self, sig, wanted):
        """What a program prints whose helper got a signal while it worked."""
        with subprocess.Popen(arguments(count=3000, helpers=1, row_us=1000, local_us=5000), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
            for line in driver.stdout:
                if line == "helped\n":
                    break
            mine = children(driver.pid)
            os.kill(busiest(mine), sig)
            rest, errors = driver.communicate(timeout=100)
            self.assertEqual(driver.returncode, 0, errors)
            self.assertEqual(found(rest, "sha256"), wanted)
            # One second and a range: a batch waits no longer for rows that a helper has.
            self.assertLess(float(found(rest, "longest")), 10.0)
            for pid in mine:
                self.assertFalse(self.lives(pid), f"process {pid} is left behind")
            return rest

    def test_helpers_that_die_stop_or_leave_cost_no_row(self):
        wanted = found(run(count=3000).stdout, "sha256")
        for sig in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(sig):
                self.assertIn("rows", self.hurt_a_helper(sig, wanted))
        # Which child is the helper that has rows just now is a guess, on a busy machine a bad one now and then.
        self.assertTrue(any("given out again" in self.hurt_a_helper(signal.SIGSTOP, wanted) for _ in range(4)), "no rows of one that stands still were given out again")

    @staticmethod
    def lives(pid: int) -> bool:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return False
            except OSError:
                return False
            time.sleep(0.05)
        return True

    def test_what_a_helper_cannot_read_is_made_here(self):
        wanted = found(run(count=1000).stdout, "sha256")
        got = run(helpers=1, needs="/no/such/file", count=1000, local_us=5000)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(found(got.stdout, "sha256"), wanted)
        self.assertIn("cannot read", got.stderr)
        self.assertIn("is left out", got.stderr)

    def test_a_row_that_throws_is_named_wherever_it_is_made(self):
        for helpers in (0, 1):
            with self.subTest(helpers=helpers):
                got = run(throws=1, helpers=helpers, row_us=500)
                self.assertEqual(got.returncode, 1, got.stdout)
                self.assertIn("sample 77", got.stderr)
                self.assertIn("seventy-seven", got.stderr)
                left_out = run(throws=1, helpers=helpers, row_us=500, bad_rows=1)
                self.assertEqual(left_out.returncode, 0, left_out.stderr)
                self.assertEqual(found(left_out.stdout, "rows"), "499")

    def test_a_place_is_gone_on_from_with_and_without_helpers(self):
        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "place")
            whole = run(steps=20, epochs=2)
            run(steps=12, epochs=2, save=place, helpers=1, local_us=5000)
            self.assertLessEqual(os.path.getsize(place), 64)
            rest = [run(epochs=2, steps=8, restore=place, helpers=helpers) for helpers in (0, 1)]
            self.assertEqual(found(rest[0].stdout, "sha256"), found(rest[1].stdout, "sha256"))
            rows = [sum(int(n) for n in re.findall(r"^batch \d+ (\d+)$", r.stdout, re.M)) for r in (whole, run(steps=12, epochs=2), rest[0])]
            self.assertEqual(rows[0], rows[1] + rows[2])
            other = run(count=501, restore=place)
            self.assertEqual(other.returncode, 1)
            self.assertIn("of other data", other.stderr)

    # ---- ranks, threads, helpers, and what becomes of them ---------------------------------------
    COUNT, BATCH, EPOCHS = 400, 40, 2

    def world(self, ranks: int, event=None, folder="", **options) -> int:
        """Exclusive or of the digests of all ranks; the samples are added to self.seen."""
        options = {"count": self.COUNT, "batch": self.BATCH, "epochs": self.EPOCHS, "row_us": 200, "local_us": 1000, **options}
        with tempfile.TemporaryDirectory() as own:
            ids = [os.path.join(own, str(rank)) for rank in range(ranks)]
            started = [subprocess.Popen(arguments(rank=rank, world=ranks, ids=ids[rank], **options), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
            helpers = []
            if event is not None:
                for line in started[0].stdout:
                    if line == "helped\n":
                        break
                helpers = children(started[0].pid)
                os.kill(busiest(helpers), event)
            digest = 0
            for process in started:
                text, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, errors)
                digest ^= int(found(text, "digest"), 16)
            for pid in helpers:
                self.assertFalse(self.lives(pid), f"process {pid} is left behind")
            for name in ids:
                with open(name, encoding="ascii") as file:
                    self.seen += [tuple(map(int, line.split())) for line in file]
        return digest

    def each_once(self, epochs: int):
        wanted = [(epoch, sample) for epoch in range(epochs) for sample in range(self.COUNT) if sample % 5 != 3]
        self.assertEqual(sorted(self.seen), wanted)

    def combinations(self):
        signals = (None, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
        every = [one for one in itertools.product((1, 2, 3), (1, 2, 7), (0, 1, 2), signals) if one[2] > 0 or one[3] is None]
        if os.environ.get("SKEIN_DATA_MATRIX") == "full":
            return every
        square = [(ranks, threads, (i + j) % 3) for i, ranks in enumerate((1, 2, 3)) for j, threads in enumerate((1, 2, 7))]
        return [(*one, signals[n % 4] if one[2] > 0 else None) for n, one in enumerate(square)]

    def test_one_digest_and_each_sample_once_for_ranks_threads_helpers_and_signals(self):
        self.seen = []
        wanted = self.world(1, threads=1)
        self.each_once(self.EPOCHS)
        for ranks, threads, helpers, event in self.combinations():
            with self.subTest(ranks=ranks, threads=threads, helpers=helpers, event=event):
                self.seen = []
                self.assertEqual(self.world(ranks, event, threads=threads, helpers=helpers), wanted)
                self.each_once(self.EPOCHS)

    def test_worlds_of_3_2_1_3_ranks_go_on_from_each_other(self):
        self.seen = []
        wanted = self.world(1, threads=2)
        self.seen = []
        digest = 0
        with tempfile.TemporaryDirectory() as folder:
            place = ""
            for number, (ranks, steps) in enumerate(((3, 7), (2, 11), (1, 5), (3, 0))):
                options = {"restore": place} if place else {}
                place = os.path.join(folder, str(number))
                digest ^= self.world(ranks, threads=2, helpers=ranks % 2, save=place, steps=steps, **options)
        self.assertEqual(digest, wanted)
        self.each_once(self.EPOCHS)

    def test_a_node_that_joins_helps_and_one_that_dies_costs_no_row(self):
        wanted = found(run(count=4000, epochs=1).stdout, "sha256")
        with Cluster() as cluster:
            cluster.join("first", "--labels", "role=cpu")
            cluster.joined("first")
            rank = cluster.run(*arguments(count=4000, helpers=2, on="role=cpu", row_us=500, local_us=4000), SKEIN_ADDRESS=cluster.address)
            rank.wait_until(lambda: "helped\n" in rank.stdout, "rows of the first node", 60)
            cluster.join("second", "--labels", "role=cpu")
            cluster.joined("second")
            cluster.nodes["first"].process.kill()
            self.assertEqual(rank.wait(100), 0, rank.stderr)
            self.assertEqual(found(rank.stdout, "sha256"), wanted)
            helpers = re.findall(r"\d+@\S+ +([1-9]\d*) rows", rank.stdout)
            self.assertGreaterEqual(len(helpers), 2, rank.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)

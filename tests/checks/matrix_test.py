#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/matrix tells a failure from a skip, and an example that says something else from one that passes.

Nothing is fetched or compiled here: the stage itself is SKEIN_STAGES=matrix scripts/test.
"""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(SOURCE, "scripts"))
os.environ.setdefault("SKEIN_DEPS", tempfile.gettempdir())
import matrix       # noqa: E402
import running      # noqa: E402


def passing(_scratch):
    return "g++ 1.2.3", "Asio 4.5.6", 7.0


def failing(_scratch):
    raise AssertionError("does not compile")


def broken(_scratch):
    raise OSError("no such program")


def missing(_scratch):
    raise matrix.skipped("there is no package y")


class rows(unittest.TestCase):
    def of(self, named, *wanted):
        """(what was printed, how it ended) of a matrix with these rows."""
        said = io.StringIO()
        with mock.patch.object(matrix, "ROWS", named), mock.patch.object(sys, "argv", ["matrix", *wanted]), contextlib.redirect_stdout(said):
            try:
                matrix.main()
            except SystemExit as end:
                return said.getvalue(), end.code
        return said.getvalue(), None

    def test_a_failed_row_fails_the_stage_and_does_not_hide_those_after_it(self):
        said, end = self.of({"bad": failing, "broken": broken, "good": passing})
        self.assertEqual(end, "error: failed: bad broken")
        self.assertIn("does not compile", said)
        self.assertIn("| good | g++ 1.2.3 | Asio 4.5.6 | 7 | passed |", said)

    def test_a_skipped_row_says_why_and_fails_nothing(self):
        said, end = self.of({"gone": missing, "good": passing})
        self.assertIsNone(end)
        self.assertIn("skipped: there is no package y", said)

    def test_rows_are_chosen_by_name(self):
        self.assertIsNone(self.of({"bad": failing, "good": passing}, "good")[1])
        self.assertIn("unknown row", self.of({"good": passing}, "best")[1])


class examples(unittest.TestCase):
    def ends(self, code, said):
        running.expect("010_hello_task", subprocess.CompletedProcess([], code, said, ""))

    def test_an_example_has_to_end_well_and_to_say_what_is_expected(self):
        with open(os.path.join(SOURCE, "examples", "010_hello_task.expected"), encoding="utf-8") as file:
            expected = file.read()
        self.ends(0, expected)
        for code, said in ((1, expected), (-11, expected), (0, ""), (0, expected + "more\n")):
            with self.assertRaises(AssertionError):
                self.ends(code, said)

    def test_a_benchmark_has_to_print_its_figures_and_may_miss_a_bar(self):
        def ends(code, said):
            running.expect_figures("bench_wire", subprocess.CompletedProcess([], code, said, ""))
        figure = '{"name": "wire.encode", "value": 3.5, "ok": false}\n'
        ends(0, figure)
        ends(1, figure)
        for code, said in ((-11, figure), (127, figure), (0, ""), (0, figure + "warning\n"), (0, figure.replace("wire.", "rt.")),
                           (0, figure.replace("3.5", "0")), (0, figure.replace("3.5", "null")), (0, "{}\n")):
            with self.assertRaises(AssertionError):
                ends(code, said)


if __name__ == "__main__":
    unittest.main()

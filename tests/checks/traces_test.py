#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/sim/compare_hashes.py fails when the traces of two builds differ, and passes over what it cannot compare."""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SOURCE, "tests", "sim"))
import compare_hashes       # noqa: E402

RUNS = {("link", 1): "00000000000000aa 10", ("link", 2): "00000000000000bb 20", ("echo", 1): "00000000000000cc 30"}


class builds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def put(self, build, runs, sources="s1", compiler="g++ 1.2"):
        path = self.root / build / "tests" / "skein_sim.hashes"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"sources {sources}", f"compiler {compiler}"] + [f"{name} {seed} {rest}" for (name, seed), rest in runs.items()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def of(self, path, *needed):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = compare_hashes.compare(path, list(needed))
        return code, said.getvalue()

    def test_alone(self):
        code, said = self.of(self.put("clang", RUNS))
        self.assertEqual(code, 0)
        self.assertIn("nothing to compare with", said)

    def test_equal_in_what_both_have(self):
        self.put("clang", {**RUNS, ("echo", 2): "00000000000000dd 40"}, compiler="clang 3.4")
        code, said = self.of(self.put("gcc", RUNS), "clang")
        self.assertEqual((code, said), (0, "3 traces are those of clang (clang 3.4)\n"))

    def test_different(self):
        self.put("clang", {**RUNS, ("link", 2): "00000000000000ff 21"}, compiler="clang 3.4")
        for needed in ((), ("clang",)):
            code, said = self.of(self.put("gcc", RUNS), *needed)
            self.assertEqual(code, 1)
            for part in ("1 of 3 traces differ", "clang 3.4", "g++ 1.2", "link seed 2: 00000000000000ff after 21 events, 00000000000000bb after 20",
                         f"{self.root}/gcc/tests/skein_sim --seeds 1 --first 2 --scenario link --trace gcc.trace"):
                self.assertIn(part, said)

    def test_other_sources(self):
        self.put("clang", {**RUNS, ("link", 2): "00000000000000ff 21"}, sources="s0")
        mine = self.put("gcc", RUNS)
        self.assertEqual(self.of(mine)[0], 0)
        code, said = self.of(mine, "clang")
        self.assertEqual(code, 1)
        self.assertIn("error: clang is a build of other sources", said)

    def test_needed_and_missing(self):
        code, said = self.of(self.put("gcc", RUNS), "clang")
        self.assertEqual(code, 1)
        self.assertIn("clang/tests/skein_sim.hashes is missing", said)

    def test_nothing_in_common_or_broken(self):
        mine = self.put("gcc", RUNS)
        self.put("clang", {("link", 9): "00000000000000ff 21"})
        code, said = self.of(mine)
        self.assertEqual(code, 1)
        self.assertIn("no scenario and seed in common", said)
        self.put("clang", {})
        code, said = self.of(mine)
        self.assertEqual(code, 1)
        self.assertIn("is broken", said)

    def test_the_hash_follows_from_names_and_bytes(self):
        def hashed():
            out = self.root / "out.cpp"
            subprocess.run([sys.executable, os.path.join(SOURCE, "cmake", "hash_of_sources.py"), out, "a", "b"], cwd=self.root, check=True)
            return out.read_text(encoding="utf-8")
        for folder in "ab":
            (self.root / folder).mkdir()
            (self.root / folder / "x.hpp").write_text("1", encoding="utf-8")
        first = hashed()
        self.assertEqual(first, hashed())
        (self.root / "b" / "x.hpp").write_text("2", encoding="utf-8")
        second = hashed()
        (self.root / "b" / "x.hpp").rename(self.root / "b" / "y.hpp")
        self.assertEqual(len({first, second, hashed()}), 3)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A release has the same bytes twice, sums and an SBOM that other tools read, and one version everywhere."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("SKEIN_SOURCE_DIR") or Path(__file__).resolve().parents[2])
PYTHON = Path(os.environ.get("SKEIN_PYTHON") or sys.executable)


def tool(name):
    """A program of the tests' Python, or of the PATH."""
    beside = PYTHON.parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def release(out, *more):
    return subprocess.run([sys.executable, SOURCE / "scripts/release.py", "--output", out, *more], cwd=SOURCE,
                          capture_output=True, text=True, check=False)


class releases(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="skein-release-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_the_same_bytes_twice_and_what_they_are(self):
        made = []
        for name in ("one", "two"):
            done = release(self.folder / name, "--only", "source", "single_include")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("left out: deb site programs", done.stdout)
            made.append((self.folder / name / "SHA256SUMS").read_bytes())
        self.assertEqual(made[0], made[1])
        checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=self.folder / "one",
                                 capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        source = next((self.folder / "one").glob("skein-[0-9]*.tar.gz"))
        with tarfile.open(source) as files:
            names = [f.split("/", 1)[1] for f in files.getnames()]
        for wanted in ("LICENSE", "include/skein/skein.hpp", "CMakeLists.txt", "scripts/setup"):
            self.assertIn(wanted, names)
        sbom = next((self.folder / "one").glob("*.spdx.json"))
        self.assertIn("fmt", [p["name"] for p in json.loads(sbom.read_text())["packages"]])
        if tool("pyspdxtools"):
            read = subprocess.run([tool("pyspdxtools"), "-i", sbom], capture_output=True, text=True, check=False)
            self.assertEqual(read.returncode, 0, read.stdout + read.stderr)

    def test_a_folder_with_other_files_is_left_alone(self):
        (self.folder / "thesis.txt").write_text("mine")
        done = release(self.folder, "--only", "source")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("thesis.txt", done.stderr)
        self.assertEqual((self.folder / "thesis.txt").read_text(), "mine")

    def test_a_tag_is_not_made_of_some_programs(self):
        done = release(self.folder, "--tag", "--programs", "010_hello_task")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--tag wants all parts, with all programs", done.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_version_that_differs_is_named(self):
        spec = importlib.util.spec_from_file_location("release", SOURCE / "scripts/release.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for path in ("include/skein/core/config.hpp", "CHANGELOG.md", "packaging/vcpkg/ports/skein/vcpkg.json"):
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / path, self.folder / path)
        self.assertEqual(module.version_errors(self.folder), [])
        version = module.version_of(self.folder)
        for path, where in (("CHANGELOG.md", "CHANGELOG.md"), ("packaging/vcpkg/ports/skein/vcpkg.json", "vcpkg.json")):
            before = (self.folder / path).read_text()
            (self.folder / path).write_text(before.replace(version, "9.9.9", 1))
            wrong = module.version_errors(self.folder)
            self.assertEqual(len(wrong), 1, wrong)
            self.assertIn(where, wrong[0])
            self.assertIn("9.9.9", wrong[0])
            (self.folder / path).write_text(before)


if __name__ == "__main__":
    if not (SOURCE / ".git").exists():
        print("skipped: a release is made from a git repository, and this is none")
        sys.exit(77)
    unittest.main()

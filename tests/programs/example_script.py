# SPDX-License-Identifier: Apache-2.0
"""Scripts of examples, run as their first lines say, and what their .expected files want of their output."""
import os
import pathlib
import sys
import tempfile

from program import Run, find_program

EXAMPLES = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "examples"
sys.path.insert(0, str(EXAMPLES.parent / "cmake"))
from run_example import matches  # noqa: E402


def by_script(example, check, *words):
    """Runs `run.sh SKEIN WORDS` of an example, check(run); neither a process nor a file is left."""
    with tempfile.TemporaryDirectory(prefix="skein-script-") as folder:
        with Run([EXAMPLES / example / "run.sh", find_program("skein"), *words], cwd=folder, TMPDIR=folder, HOME=folder) as run:
            check(run)
            run.check_nothing_left()
        left = sorted(os.listdir(folder))
        assert not left, f"files are left: {left}"


def check_expected(run, example):
    """What it has printed is what its .expected file says."""
    expected = (EXAMPLES / example / f"{example}.expected").read_text().splitlines()
    at = matches(expected, run.stdout.splitlines())
    run.check(at < 0, f"line {at + 1} of {example}.expected was not met")

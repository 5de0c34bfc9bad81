#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training program as a folder of scripts/programs --train runs where nothing but the folder and glibc is.

The root it runs in holds the folder, glibc's libraries, a text, /proc and /dev. Nothing is compiled here.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import BUILD, TINY, Run, find_program, run_cases, skip, write_text  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR") or pathlib.Path(__file__).resolve().parents[2])
sys.path.insert(0, str(SOURCE / "scripts"))
import running       # noqa: E402
import train_folder  # noqa: E402

NAME = "110_gpt_ddp"
ARGUMENTS = [*TINY, "--workers", 2, "--steps", 20, "--run", "tiny"]


def copy_glibc(program, root):
    """Puts the loader and glibc's libraries where they lie on this machine."""
    said = subprocess.run(["ldd", program, *(program.parent / "lib").iterdir()], stdout=subprocess.PIPE, text=True, check=True).stdout
    for word in {word for word in said.split() if word.startswith("/") and train_folder.GLIBC.match(os.path.basename(word))}:
        target = root / word.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(word), target)


def main():
    program = find_program(NAME)
    for tool in ("unshare", "ldd", "readelf", "strip", "cmake"):
        if not shutil.which(tool):
            skip(f"there is no {tool}")
    with tempfile.TemporaryDirectory(prefix="skein-folder-") as name:
        scratch = pathlib.Path(name)
        root = scratch / "root"
        running.make_root(root)
        possible = subprocess.run([*running.in_root(root, try_only=True), "true"], capture_output=True, text=True, check=False)
        if possible.returncode != 0:
            skip(f"no root of its own for a program here: {possible.stderr.strip()}")
        made = subprocess.run([SOURCE / "scripts/programs", "--train", "--build", BUILD, "--output", root / "opt", NAME],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert made.returncode == 0, made.stdout
        folder = root / "opt/train"
        copy_glibc(folder / NAME, root)
        write_text(root)
        inside = [*running.in_root(root), f"/opt/train/{NAME}"]

        def trains_alone():
            with Run([*inside, *ARGUMENTS, "--text", "/text.txt", "--runs", "/runs"]) as run:
                run.check(run.wait() == 0, "the run in a root of its own failed")
                run.check_nothing_left()
            with Run([program, *ARGUMENTS, "--text", root / "text.txt", "--runs", scratch / "runs"]) as run:
                run.check(run.wait() == 0, "the run outside failed")
            alone, outside = ((place / "runs/tiny/metrics.csv").read_bytes() for place in (root, scratch))
            assert alone.count(b"\n") == 21 and alone == outside, f"{alone.decode()}\nis not\n{outside.decode()}"

        def says_the_glibc_it_needs():
            assert "glibc 2." in made.stdout and "needs " + os.uname().machine in made.stdout, made.stdout

        def needs_its_libraries():
            (folder / "lib").rename(folder / "elsewhere")
            with Run([*inside, "--help"]) as run:
                run.check(run.wait() == 127 and "cannot open shared object file" in run.stderr, "it found libraries outside its folder")
            (folder / "elsewhere").rename(folder / "lib")

        run_cases([("in a root with the folder and glibc alone it trains as it does outside", trains_alone),
                   ("the folder says which machine and which glibc it needs", says_the_glibc_it_needs),
                   ("its libraries come from the folder", needs_its_libraries)])


if __name__ == "__main__":
    main()

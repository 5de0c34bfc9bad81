# SPDX-License-Identifier: Apache-2.0
"""What the tests of using skein from outside share. Called as NAME_test.py COMPILER CMAKE."""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROJECT = os.path.join(SOURCE, "tests", "consume", "project")
COMPILER = sys.argv[1] if len(sys.argv) > 1 else shutil.which("clang++-19") or "g++"
GENERATOR = ["-G", "Ninja"] if shutil.which("ninja") else []
# The library is compiled by several of these tests, with the same flags: with a compiler cache once.
COMPILERS = [f"-DCMAKE_CXX_COMPILER={COMPILER}", *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else [])]
FLAGS = ["-DCMAKE_CXX_FLAGS=-O0"]
CMAKE = sys.argv[2] if len(sys.argv) > 2 else "cmake"


def run(*command: str, **more) -> str:
    print("+", " ".join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode != 0:
        print(done.stdout[-6000:])
        sys.exit(f"failed with {done.returncode}")
    return done.stdout


def configure_and_build(folder: str, *options: str) -> str:
    """Builds the project in tests/consume, runs it, and gives what its configuring said."""
    configured = run(CMAKE, "-S", PROJECT, "-B", folder, *GENERATOR, *COMPILERS, *FLAGS, *options)
    run(CMAKE, "--build", folder, "-j2", "--target", "consumer")
    said = run(os.path.join(folder, "consumer"))
    if said != "skein 0.1.0: 42\n":
        sys.exit(f"unexpected: {said!r}")
    expect_compiler_warning(configured)
    return configured


def expect_compiler_warning(configured: str) -> None:
    """A project that uses skein is told once what g++ before 13 breaks, and where the check for it is."""
    version = run(COMPILER, "-dumpfullversion") if "clang" not in run(COMPILER, "--version") else "99"
    said = " ".join(configured.split())     # CMake folds the lines
    assert said.count("destroys an aggregate") == (1 if int(version.split(".")[0]) < 13 else 0), configured
    for word in said.split():
        if word.endswith("check_await.py"):
            run(sys.executable, word, PROJECT)


def scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="skein-consume-")

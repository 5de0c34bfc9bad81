# SPDX-License-Identifier: Apache-2.0
"""What the tests of using skein from outside share. Called as NAME_test.py COMPILER CMAKE."""
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROJECT = os.path.join(SOURCE, "tests", "consume", "project")
COMPILER = sys.argv[1] if len(sys.argv) > 1 else shutil.which("clang++-19") or "g++"
GENERATOR = ["-G", "Ninja"] if shutil.which("ninja") else []
# The library is compiled by several of these tests, with the same flags: with a compiler cache once. CMake before and
# after 3.30 puts -std before or behind other flags; what the flags hold already it does not put there.
COMPILERS = [f"-DCMAKE_CXX_COMPILER={COMPILER}", *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else [])]
FLAGS = ["-DCMAKE_CXX_FLAGS=-O0"]
LIBRARY_FLAGS = ["-DCMAKE_CXX_FLAGS=-O0 -std=gnu++20"]
# With paths as they are a file has one entry in the cache wherever it is built; paths relative to the folder of the build
# differ with that folder's depth.
os.environ.pop("CCACHE_BASEDIR", None)
CMAKE = sys.argv[2] if len(sys.argv) > 2 else "cmake"


def run(*command: str, **more) -> str:
    print("+", " ".join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode != 0:
        print(done.stdout[-6000:])
        sys.exit(f"failed with {done.returncode}")
    return done.stdout


def skip(reason: str) -> None:
    print("skipped:", reason, flush=True)
    sys.exit(77)


def tool(name: str) -> str:
    """A program of PATH, or of the packages that scripts/setup --test installs; skips the test without it."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    deps = os.environ.get("SKEIN_DEPS") or os.path.join(cache, "skein")
    found = shutil.which(name) or shutil.which(os.path.join(deps, "test-python", "bin", name))
    return found or skip(f"there is no {name} (scripts/setup --test installs it)")


def both_compilers() -> list:
    """This build's compiler first, then the one of the other family, if there is one."""
    other = ["g++"] if "clang" in COMPILER else ["clang++-19", "clang++"]
    return [COMPILER, *[found for found in map(shutil.which, other) if found][:1]]


def expect_answer(program: str, **more) -> None:
    said = run(program, **more)
    if said != "skein 0.1.0: 42\n":
        sys.exit(f"unexpected: {said!r}")


def without_headers(folder: str, *hidden: str) -> list:
    """Flags with which the compiler finds all that it finds else, but these headers or folders of headers."""
    said = subprocess.run([COMPILER, "-E", "-x", "c++", "-v", os.devnull], capture_output=True, text=True, check=True).stderr
    found = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", said, re.S).group(1).split()
    flags = ["-nostdinc", "-nostdinc++"]
    for number, real in enumerate(found):
        shown = os.path.join(folder, str(number))
        os.makedirs(shown)
        for name in os.listdir(real):
            if name not in hidden:
                os.symlink(os.path.join(real, name), os.path.join(shown, name))
        flags += ["-isystem", shown]
    return flags


@contextlib.contextmanager
def installed_compiled():
    """The folder where the compiled form without LibTorch is installed, and what configuring it said.

    It is built and installed once for all tests of one build of skein, below SKEIN_BUILD_DIR, and built further there when
    the sources have changed; without that variable anew each time. One test at a time.
    """
    below = os.environ.get("SKEIN_BUILD_DIR", "")
    with scratch() if not below else contextlib.nullcontext(os.path.join(below, "consume")) as folder:
        os.makedirs(folder, exist_ok=True)
        prefix, build = os.path.join(folder, "prefix"), os.path.join(folder, "build")
        with open(os.path.join(folder, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            said = run(CMAKE, "-S", SOURCE, "-B", build, *GENERATOR, *COMPILERS, *LIBRARY_FLAGS, "-DSKEIN_DEVELOPER_MODE=OFF", "-DSKEIN_TORCH=OFF",
                       f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DCMAKE_INSTALL_LIBDIR=lib")
            run(CMAKE, "--build", build, "-j2")
            shutil.rmtree(prefix, ignore_errors=True)   # what is not installed any more must not be found
            run(CMAKE, "--install", build)
            yield prefix, said


def install_header_only(build: str, prefix: str, *options: str, **more) -> None:
    """Installs the header-only form: nothing is compiled."""
    run(CMAKE, "-S", SOURCE, "-B", build, *GENERATOR, f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DSKEIN_DEVELOPER_MODE=OFF",
        "-DSKEIN_TORCH=OFF", "-DSKEIN_COMPILED=OFF", f"-DCMAKE_INSTALL_PREFIX={prefix}", *options, **more)
    run(CMAKE, "--install", build, **more)


def configure_and_build(folder: str, *options: str, **more) -> str:
    """Builds the project in tests/consume, runs it, and gives what its configuring said."""
    configured = run(CMAKE, "-S", PROJECT, "-B", folder, *GENERATOR, *COMPILERS, *FLAGS, *options, **more)
    run(CMAKE, "--build", folder, "-j2", "--target", "consumer", **more)
    expect_answer(os.path.join(folder, "consumer"), **more)
    expect_compiler_warning(configured)
    return configured


def expect_check_await(folder: str) -> None:
    """The warning for old g++, read from where a package has put it, names a script that is there."""
    done = subprocess.run([CMAKE, "-DCMAKE_CXX_COMPILER_ID=GNU", "-DCMAKE_CXX_COMPILER_VERSION=12.2", "-P",
                           os.path.join(folder, "SkeinCompiler.cmake")], capture_output=True, text=True, check=True)
    named = [word for word in done.stderr.split() if word.endswith("check_await.py")]
    assert len(named) == 1 and os.path.exists(named[0]), done.stderr
    run(sys.executable, named[0], PROJECT)


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

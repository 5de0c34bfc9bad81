#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/programs --train: programs of a build folder beside the shared libraries they need.

Called as train_folder.py BUILD FOLDER PROGRAM...: FOLDER/PROGRAM, and in FOLDER/lib every library that the dynamic linker
loads for it, but those of glibc. They are found by $ORIGIN, wherever the folder lies. glibc stays out: its loader is named
by an absolute path in every program, and libraries of one glibc do not run under the loader of another. So the
folder needs the glibc that it says at its end, or a newer one.
"""
import os
import re
import shutil
import subprocess
import sys

# What glibc consists of; linux-vdso is the kernel's.
GLIBC = re.compile(r"(linux-vdso|ld-linux[-\w]*|lib(c|m|mvec|rt|dl|pthread|util|resolv|anl))\.so(\.\d+)*$")


def fail(what: str) -> None:
    sys.exit(f"error: {what}")


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def libraries(program: str) -> dict:
    """Name -> path of every library that the dynamic linker loads for the program, but glibc's."""
    found = {}
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    said = subprocess.run(["ldd", program], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in said.splitlines():
        name, _, where = line.strip().partition(" => ")
        if "not found" in where:
            fail(f"{program} needs {name}, which is not found")
        if where and not GLIBC.match(os.path.basename(name)):
            found[name] = where.rsplit(" (", 1)[0]
    return found


def find_beside(program: str) -> None:
    """Replaces where the program looks for its libraries by `lib` beside it: CMake's way of installing, no relinking."""
    found = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", program))
    if not found:
        fail(f"{program} has no RPATH that could be replaced")
    script = os.path.join(os.path.dirname(program), "rpath.cmake")
    with open(script, "w", encoding="utf-8") as file:
        file.write(f'file(RPATH_CHANGE FILE [[{program}]] OLD_RPATH [[{found.group(1)}]] NEW_RPATH [[$ORIGIN/lib]])\n')
    run("cmake", "-P", script)
    os.remove(script)


def glibc_of(files: list) -> tuple:
    """The newest glibc version whose symbols these files ask for."""
    newest = (0, 0)
    for file in files:
        asked = run("readelf", "--version-info", "--wide", file).partition("needs section")[2]
        for version in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", asked):
            newest = max(newest, (int(version[0]), int(version[1])))
    return newest


def make(build: str, folder: str, programs: list) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "lib"))
    for name in programs:
        if not os.path.exists(os.path.join(build, "examples", name)):
            fail(f"{name} is not built in {build}")
        shutil.copy(os.path.join(build, "examples", name), folder)
        run("strip", os.path.join(folder, name))
        find_beside(os.path.join(folder, name))
        for library, path in libraries(os.path.join(build, "examples", name)).items():
            target = os.path.join(folder, "lib", library)
            if not os.path.exists(target):
                shutil.copy(os.path.realpath(path), target)
    check(folder, programs)


def check(folder: str, programs: list) -> None:
    """Nothing is loaded from outside, and nothing lies there that is not loaded."""
    inside, used = os.path.realpath(os.path.join(folder, "lib")), set()
    for name in programs:
        for library, path in libraries(os.path.join(folder, name)).items():
            if os.path.dirname(os.path.realpath(path)) != inside:
                fail(f"{name} loads {path}, which is outside {folder}")
            used.add(library)
    unused = set(os.listdir(inside)) - used
    if unused:
        fail(f"nobody needs {' '.join(sorted(unused))} of {inside}")


def main() -> None:
    build, folder, *programs = sys.argv[1:]
    for needed in ("cmake", "ldd", "readelf", "strip"):
        shutil.which(needed) or fail(f"there is no {needed}")
    make(build, folder, programs)
    files = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    size = sum(map(os.path.getsize, files)) >> 20
    major, minor = glibc_of(files)
    print(f"-- {folder}: {' '.join(programs)} and {len(files) - len(programs)} libraries, {size} MiB; needs {os.uname().machine}, "
          f"glibc {major}.{minor} or newer", flush=True)


if __name__ == "__main__":
    main()

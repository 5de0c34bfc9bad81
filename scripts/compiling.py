# SPDX-License-Identifier: Apache-2.0
"""What the scripts that call a compiler share: the compiler, the flags of skein's two forms, LibTorch's folders, times.

Times are seconds of processor time of the compiler, user and system, so that other programs on the machine count
little; figures are ratios of medians of runs that took turns.
"""
import os
import re
import resource
import shutil
import statistics
import subprocess
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))


def compiler() -> str:
    return os.environ.get("CXX") or shutil.which("clang++-19") or shutil.which("g++") or ""


def forms(file: str = os.path.join(HERE, "cost.toml")) -> dict:
    """The flags of the compiled and of the header-only form, as CMake's targets give them."""
    with open(file, "rb") as opened:
        return tomllib.load(opened)["forms"]


def deps_folder() -> str:
    """Where scripts/setup puts LibTorch and the Python packages of tests and checks."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("SKEIN_DEPS") or os.path.join(home, "skein")


def libtorch_flags() -> list:
    """As cmake/FindLibTorch.cmake gives them; empty when there is no LibTorch where it looks first."""
    deps = deps_folder()
    given = os.environ.get("LIBTORCH", "")
    candidates = [given, os.path.join(given, "torch")] if given else []
    if not given and os.path.isdir(deps):
        stored = [name for name in os.listdir(deps) if re.fullmatch(r"libtorch-[\d.]+-(cuda|cpu)", name)]
        stored.sort(key=lambda name: (name.endswith("-cuda"), [int(part) for part in re.findall(r"\d+", name)]), reverse=True)
        candidates = [os.path.join(deps, name, "torch") for name in stored]
    for folder in candidates:
        if os.path.exists(os.path.join(folder, "include", "ATen", "ATen.h")):
            include = os.path.join(folder, "include")
            return ["-idirafter", include, "-idirafter", os.path.join(include, "torch", "csrc", "api", "include")]
    return []


def run(command: list) -> str:
    """Standard output; a compiler that fails ends the script with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[:4000]}")
    return done.stdout


def cpu_seconds(command: list) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def in_turns(commands: dict, rounds: int) -> dict:
    """name -> median seconds; A B C A B C, because a shared machine drifts."""
    times: dict = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(cpu_seconds(command))
    return {name: statistics.median(values) for name, values in times.items()}

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu-pack gathers is enough to build the checks of devices, without network and without this tree.

    gpu_check_test.py [CASE...]

All of it takes minutes of a compiler; here the checks without LibTorch's headers are compiled: SKEIN_GPU_CHECK=full builds all.
"""
# label: runtime;cuda
import contextlib
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
# The same folder each time, so that a compiler cache knows its files; nothing of it stays.
PACK = f"/tmp/skein-gpu-{hashlib.sha256(SOURCE.encode()).hexdigest()[:8]}-{os.getuid()}"
NO_DEVICE, MISSING = 77, 2


class skipped(Exception):
    """The text says why."""


def run(*command, **more):
    """Exit code and all that was said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540, check=False, **more)
    print(f"+ {' '.join(command)}\n{done.stdout}exit {done.returncode}", flush=True)
    return done.returncode, done.stdout


def find_torch() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    deps = os.environ.get("SKEIN_DEPS") or os.path.join(cache, "skein")
    for folder in [os.environ.get("LIBTORCH", ""), *sorted(glob.glob(f"{deps}/libtorch-*/torch"), reverse=True)]:
        if folder and os.path.exists(f"{folder}/include/torch/headeronly/version.h"):
            return folder
    raise skipped("no torch 2.11 with its headers: scripts/setup brings one, or LIBTORCH names it")


@contextlib.contextmanager
def packed():
    """What gpu-pack made, gone afterwards."""
    if subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], capture_output=True, check=False).returncode != 0:
        raise skipped("this tree is no git checkout")
    shutil.rmtree(PACK, ignore_errors=True)
    try:
        code, said = run(os.path.join(SOURCE, "scripts", "gpu-pack"), PACK)
        assert code == 0 and "packed" in said, said
        yield PACK
    finally:
        shutil.rmtree(PACK, ignore_errors=True)


def check_alone(*arguments, **variables):
    """gpu-check where there is no network and this tree is empty, as far as this user may make such a place."""
    command = [os.path.join(PACK, "gpu-check"), *arguments]
    alone = ["unshare", "-m", "-n", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', SOURCE]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
        command = [*alone, *command]
    else:
        print("-- no namespaces for this user: the tree and the network stay")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SKEIN_", "CCACHE_BASEDIR"))}
    return run(*command, cwd="/", env={**environment, **variables})


def case_what_is_missing_is_said():
    check = os.path.join(SOURCE, "scripts", "gpu-check")
    code, said = run(check, "/usr")
    assert code == MISSING and "is not what scripts/gpu-pack makes" in said, said
    code, said = run(os.path.join(SOURCE, "scripts", "gpu-pack"), "/usr")
    assert code == 1 and "/usr is there and was not made by gpu-pack" in said, said


def case_built_from_the_folder_alone():
    torch = find_torch()
    with packed() as folder:
        size = sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)
        assert size < 60e6, size
        assert not os.path.exists(f"{folder}/skein/.git") and not os.path.exists(f"{folder}/skein/build")
        code, said = check_alone(LIBTORCH="/usr")
        assert code == MISSING and "/usr has no headers and libraries of torch" in said, said
        whole = os.environ.get("SKEIN_GPU_CHECK") == "full"
        code, said = check_alone(*([] if whole else ["--only", "conformance"]), LIBTORCH=torch)
        with open(f"{folder}/results/figures.jsonl", encoding="utf-8") as file:
            figures = [json.loads(line) for line in file]
        with open(f"{folder}/results/report.md", encoding="utf-8") as file:
            report = file.read()
        print(report)
        for figure in figures:
            assert all(key in figure for key in ("figure", "value", "device", "driver", "cuda", "nccl", "torch", "commit")), figure
        if code == 0:
            print("-- this machine has a device: the checks ran on it")
            return
        assert code == NO_DEVICE and "conformance: skipped: no " in said and "build: passed" in said, said
        assert "**Nothing ran on a device.**" in report and "| conformance | skipped | no " in report, report


def main():
    cases = {name[len("case_"):]: case for name, case in globals().items() if name.startswith("case_")}
    code = 0
    for name in sys.argv[1:] or cases:
        try:
            cases[name]()
            print(f"-- {name}: ok")
        except skipped as why:
            print(f"-- {name}: skipped: {why}")
            code = 77
    return code


if __name__ == "__main__":
    sys.exit(main())

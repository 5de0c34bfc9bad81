#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program that asks for a device is told where there is none: by the real libraries, as far as this machine has them.

    device_sum_test.py [CASE...]
"""
# label: runtime;cuda
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import find_program  # noqa: E402


def run(*arguments, **variables):
    """Exit code, standard output and standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    # Those that set-up has unpacked for the tests, unless the case names another.
    unpacked = [word for option in ("cudart", "nccl") if (path := os.environ.get(f"SKEIN_TEST_{option.upper()}"))
                and f"--{option}" not in arguments for word in (f"--{option}", path)]
    done = subprocess.run([find_program("skein_device_sum"), *unpacked, *arguments], env={**environment, **variables}, capture_output=True, text=True,
                          timeout=120, check=False)
    print(f"{' '.join(arguments)} {variables}: exit {done.returncode}\n{done.stdout}{done.stderr}", end="")
    return done.returncode, done.stdout, done.stderr


def case_no_runtime():
    code, _, said = run("--cudart", "libskein-no-cudart.so.13")
    assert code == 2 and "no CUDA runtime: looked for libskein-no-cudart.so.13" in said and "LD_LIBRARY_PATH" in said


def case_no_nccl():
    code, said, error = run("--nccl", "libskein-no-nccl.so.2")
    if not said.startswith("cuda "):
        return "no CUDA runtime here"
    assert code == 2 and "no NCCL: looked for libskein-no-nccl.so.2" in error and "nvidia-nccl" in error
    return None


def case_old_nccl():
    compiler = shutil.which("cc") or shutil.which("clang-19")
    if not compiler:
        return "no C compiler here"
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "old.c"), os.path.join(folder, "libnccl-2.18.so")
        pathlib.Path(source).write_text("int ncclGetVersion(int* to) { *to = 21805; return 0; }\n", encoding="ascii")
        subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
        code, said, error = run("--nccl", library)
        if not said.startswith("cuda "):
            return "no CUDA runtime here"
        assert code == 2 and f"NCCL 2.18.5 of {library}, which is older than 2.19.0" in error, error
    return None


def case_no_nccl_at_all():
    code, said, error = run("--nccl", "libm.so.6")
    if not said.startswith("cuda "):
        return "no CUDA runtime here"
    assert code == 2 and "it lacks ncclGetVersion" in error, error
    return None


def case_no_runtime_at_all():
    code, _, error = run("--cudart", "libm.so.6")
    assert code == 2 and "is no CUDA runtime that skein can use" in error and "it lacks cudaRuntimeGetVersion" in error, error


def case_no_driver():
    code, said, error = run()
    if "nccl " not in said:
        return "no CUDA runtime or no NCCL here"
    if code == 0:
        assert "sum 1 2 39" in said
        return "this machine has a device: it made the sum"
    assert code == 2 and error.startswith("error: ") and "no CUDA device" in error and error.count("\n") == 1
    return None


def case_hidden_devices():
    code, said, error = run(CUDA_VISIBLE_DEVICES="")
    if "nccl " not in said:
        return "no CUDA runtime or no NCCL here"
    assert code == 2 and "no CUDA device" in error
    # Where there is no driver that is what to mend first.
    assert "no driver of NVIDIA" in error or "CUDA_VISIBLE_DEVICES is empty" in error
    return None


def case_devices_that_are_not_there():
    code, said, error = run(CUDA_VISIBLE_DEVICES="77")
    if "nccl " not in said:
        return "no CUDA runtime or no NCCL here"
    assert code == 2 and "no CUDA device" in error
    # Where there is no driver that is what to mend first.
    assert "no driver of NVIDIA" in error or "CUDA_VISIBLE_DEVICES=77: check that it names devices" in error
    return None


def case_wrong_device():
    code, said, error = run("--device", "99")
    if "nccl " not in said:
        return "no CUDA runtime or no NCCL here"
    assert code == 2 and ("no device cuda:99" in error or "no CUDA device" in error)
    return None


def main():
    cases = {name[len("case_"):]: case for name, case in globals().items() if name.startswith("case_")}
    for name in sys.argv[1:] or cases:
        skipped = cases[name]()
        print(f"-- {name}: {'ok' if skipped is None else 'skipped: ' + skipped}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

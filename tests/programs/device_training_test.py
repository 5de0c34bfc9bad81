#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training that asks for a device is told where there is none, and that the CPU is never taken silently.

    device_training_test.py [CASE...]
"""
# label: train;cuda
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import find_program  # noqa: E402

SMALL = ["--text", "/usr/include/c++", "--max-mib", "1", "--run", "tiny", "--plain", "--steps", "2", "--batch", "4", "--context", "16",
         "--layers", "1", "--heads", "2", "--dim", "16", "--warmup", "0", "--eval-every", "0", "--eval-samples", "4", "--no-checkpoints",
         "--sample", "0"]


def run(*arguments, **variables):
    """Exit code and all that was said."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([find_program("120_gpt_fsdp"), *SMALL, "--runs", folder, *arguments], env={**environment, **variables},
                              capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    print(f"{' '.join(arguments)} {variables}: exit {done.returncode}\n{said}", end="")
    return done.returncode, said


def case_asked_for():
    code, said = run("--strategy", "single", "--workers", "1", "--device", "cuda")
    if code == 0:
        assert "computes on cuda:0" in said, said
        return "this machine has a device: it trained there"
    assert code == 2 and said.count("error: ") == 1, (code, said)
    assert "device cuda: " in said and "or train with device cpu" in said
    # Which of these is missing is the machine's; each says what was looked for and what to do.
    assert re.search(r"no CUDA runtime: looked for libcudart|no CUDA device|this LibTorch has no CUDA", said), said
    return None


def case_what_is_missing():
    code, said = run("--strategy", "single", "--workers", "1", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert code == 2, (code, said)
    if "no driver of NVIDIA" in said:
        assert "libcudart" in said and "install the driver" in said, said
    if "this LibTorch has no CUDA" in said:
        assert "libtorch_cuda.so" in said and "scripts/setup --cuda" in said, said
    assert "no driver of NVIDIA" in said or "CUDA_VISIBLE_DEVICES is empty" in said or "no CUDA runtime" in said, said


def case_no_worker_starts():
    code, said = run("--strategy", "fsdp", "--workers", "2", "--device", "cuda")
    assert code != 0 and said.count("error: ") == 1, (code, said)
    assert "rank 0" not in said or "not supported" in said, said


def case_ranks_that_would_share_a_device():
    code, said = run("--strategy", "ddp", "--workers", "2", "--communicator", "host", "--device", "cuda")
    if code == 0:
        assert "computes on cuda:0" in said, said
        return "this machine has a device: two ranks trained there"
    assert code == 2 and said.count("error: ") == 1, (code, said)
    assert "device cuda: " in said and "or train with device cpu" in said and "rank 0" not in said, said
    return None


def case_host_carries_what_is_on_the_host():
    code, said = run("--strategy", "ddp", "--workers", "2", "--communicator", "host")
    assert code == 0, (code, said)


def case_devices_that_are_not_there():
    code, said = run("--strategy", "single", "--workers", "1", "--device", "cuda", CUDA_VISIBLE_DEVICES="77")
    assert code == 2 and "device cuda: " in said, (code, said)
    assert "no driver of NVIDIA" in said or "CUDA_VISIBLE_DEVICES=77" in said or "no CUDA runtime" in said, said


def case_automatic_says_what_it_takes():
    code, said = run("--strategy", "single", "--workers", "1", "--device", "automatic")
    assert code == 0, (code, said)
    assert re.search(r"^device (cpu|cuda:0): .+", said, re.M), said


def case_no_such_kind():
    code, said = run("--device", "gpu")
    assert code == 2 and "there are cpu, cuda, and automatic" in said, (code, said)


def main():
    cases = {name[len("case_"):]: case for name, case in globals().items() if name.startswith("case_")}
    for name in sys.argv[1:] or cases:
        skipped = cases[name]()
        print(f"-- {name}: {'ok' if skipped is None else 'skipped: ' + skipped}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

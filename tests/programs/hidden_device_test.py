#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Single, DDP and FSDP on a device whose memory the host cannot read train the same model as on the CPU, bit for bit.

    hidden_device_test.py [CASE...]
"""
# label: train;cuda
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import find_program  # noqa: E402


def train(workers):
    done = subprocess.run([find_program("skein_hidden_device"), "--workers", str(workers)], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    said = done.stdout + done.stderr
    print(f"{workers} workers: exit {done.returncode}\n{said}", end="")
    if done.returncode == 77:
        print("skipped: this LibTorch has devices of its own")
        sys.exit(77)
    assert done.returncode == 0, said
    found = re.findall(r"^(\w+): \d+ weights ([0-9.e+-]+), loss ([0-9.e+-]+), norm ([0-9.e+-]+) apart", said, re.M)
    assert [name for name, *_ in found] == (["Single", "Adam", "SGD"] if workers == 1 else []) + ["DDP", "FSDP"], said
    assert all(float(weights) == 0 and float(loss) == 0 for _, weights, loss, _ in found), said
    assert workers > 1 or "not supported: optimizer lion on cuda:0" in said, said


def case_one_rank():
    train(1)


def case_two_ranks():
    train(2)


def case_three_ranks():
    train(3)


def main():
    cases = {name[len("case_"):]: case for name, case in globals().items() if name.startswith("case_")}
    for name in sys.argv[1:] or cases:
        cases[name]()
        print(f"-- {name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: packages
"""Examples 010 and 020, compiled for arm64, run under qemu."""
import os
import shutil
import sys

import consume

sys.path.insert(0, os.path.join(consume.SOURCE, "scripts"))
import running      # noqa: E402

TRIPLE = "aarch64-linux-gnu"
cross = shutil.which(f"{TRIPLE}-g++") or consume.skip(f"there is no {TRIPLE}-g++ (package g++-{TRIPLE})")
qemu = shutil.which("qemu-aarch64-static") or consume.skip("there is no qemu-aarch64-static (package qemu-user-static)")
shutil.which("unshare") or consume.skip("there is no unshare (package util-linux)")

possible = running.on_arm64(qemu, "true")
if possible.returncode != 0:
    consume.skip(f"no binfmt_misc in a user namespace (a chroot, or Linux before 6.7): {possible.stderr.strip()}")

compiler = [consume.COMPILER, f"--target={TRIPLE}"] if "clang" in consume.COMPILER else [cross]
flags = ["-std=c++20", "-O0", "-pthread", "-DFMT_HEADER_ONLY", f"-I{consume.SOURCE}/include"]
with consume.scratch() as folder:
    source, program = os.path.join(folder, "examples.cpp"), os.path.join(folder, "examples")
    running.write_both(source, consume.SOURCE)
    consume.run(*compiler, *flags, source, "-o", program)
    for number, name in running.EXAMPLES.items():
        running.expect(name, running.on_arm64(qemu, f"EXAMPLE={number} exec {program}", QEMU_LD_PREFIX=f"/usr/{TRIPLE}"))
        print(f"{name} ran on arm64", flush=True)

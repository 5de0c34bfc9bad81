#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Examples 010 and 020, compiled for arm64, run under qemu.

Their workers execute /proc/self/exe again, so the kernel has to know qemu: binfmt_misc is mounted in a user namespace
of this test's own (Linux 6.7 and newer), and nothing of the host changes.
"""
import os
import shutil
import subprocess
import sys

import consume

sys.path.insert(0, os.path.join(consume.SOURCE, "cmake"))
import run_example  # noqa: E402, its matching of lines

TRIPLE = "aarch64-linux-gnu"
EXAMPLES = {"010": "010_hello_task", "020": "020_actor_counter"}
cross = shutil.which(f"{TRIPLE}-g++") or consume.skip(f"there is no {TRIPLE}-g++ (package g++-{TRIPLE})")
qemu = shutil.which("qemu-aarch64-static") or consume.skip("there is no qemu-aarch64-static (package qemu-user-static)")
shutil.which("unshare") or consume.skip("there is no unshare (package util-linux)")

# The first bytes of an arm64 program, and which bits of them count; F: qemu is opened here, before any chroot.
MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
REGISTER = f":qemu-aarch64:M::{MAGIC}:{MASK}:{qemu}:F"


def inside(script: str) -> subprocess.CompletedProcess:
    """Runs the script where arm64 programs are known."""
    first = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf '%s' \"$REGISTER\" > /proc/sys/fs/binfmt_misc/register && "
    return subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", first + script],
                          env={**os.environ, "REGISTER": REGISTER, "QEMU_LD_PREFIX": f"/usr/{TRIPLE}"}, capture_output=True, text=True, check=False)


possible = inside("true")
if possible.returncode != 0:
    consume.skip(f"no binfmt_misc in a user namespace (a chroot, or Linux before 6.7): {possible.stderr.strip()}")

compiler = [consume.COMPILER, f"--target={TRIPLE}"] if "clang" in consume.COMPILER else [cross]
flags = ["-std=c++20", "-O0", "-pthread", "-DFMT_HEADER_ONLY", f"-I{consume.SOURCE}/include"]
with consume.scratch() as folder:
    # Both examples in one program, so that the headers are compiled once; EXAMPLE says which one it is.
    source, program = os.path.join(folder, "examples.cpp"), os.path.join(folder, "examples")
    with open(source, "w", encoding="ascii") as file:
        file.write("#include <skein/skein.hpp>\n#include <cstdlib>\n#include <cstring>\n")
        for number, name in EXAMPLES.items():
            file.write(f"#define app app_{number}\n#define main main_{number}\n"
                       f'#include "{consume.SOURCE}/examples/{name}.cpp"\n#undef app\n#undef main\n')
        file.write('int main(int argc, char** argv) {\n'
                   '    return std::strcmp(std::getenv("EXAMPLE"), "010") == 0 ? main_010(argc, argv) : main_020(argc, argv);\n}\n')
    consume.run(*compiler, *flags, source, "-o", program)
    for number, name in EXAMPLES.items():
        done = inside(f"EXAMPLE={number} exec {program}")
        with open(os.path.join(consume.SOURCE, "examples", name + ".expected"), encoding="utf-8") as file:
            differs = run_example.matches(file.read().splitlines(), done.stdout.splitlines())
        assert done.returncode == 0 and differs < 0, (done.returncode, done.stdout, done.stderr)
        print(f"{name} ran on arm64", flush=True)

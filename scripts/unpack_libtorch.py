#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""unpack_libtorch.py WHEELS INTO [--cuda-headers]: unpacks what the CPU side of LibTorch needs out of the wheels.

--cuda-headers: only what torch/cuda.hpp needs beside it, for a LibTorch that was unpacked before that was part of it.

The wheels are those of one packaging/libtorch-cpu-<version>.txt (pip has checked their sums). Layout as in a Python
environment, so that the libraries' own RPATH finds nvidia/cu13/lib beside torch/.
"""
import os
import re
import sys
import time
import zipfile

WANTED = [
    r"torch/include/.*",
    r"torch/lib/(libtorch_cpu|libc10|libc10_cuda|libshm)\.so",
    r"torch/lib/libgomp[^/]*\.so[^/]*",
    r"torch/version\.py",
    r"torch-[^/]*\.dist-info/(licenses/)?(LICENSE|NOTICE)",
    r"nvidia/cu13/lib/(libcudart\.so\.13|libcupti\.so\.13)",
    r"nvidia/cu13/include/.*\.(h|hpp)",
    r"nvidia_[^/]*\.dist-info/licenses/.*",
]
# What c10's CUDA headers want, and the library behind them: it needs no driver to be linked and loaded.
CUDA_HEADERS = [r"torch/lib/libc10_cuda\.so", r"nvidia/cu13/include/.*\.(h|hpp)", r"nvidia_cuda_crt-[^/]*\.dist-info/licenses/.*"]
OF_CUDA = ("torch/lib/libc10_cuda.so", "nvidia/cu13/include/cuda_runtime_api.h", "nvidia/cu13/include/crt/host_defines.h")
OF_CPU = ("torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13",
          "torch/include/torch/csrc/api/include/torch/torch.h")


def main() -> int:
    wheels, into = sys.argv[1], sys.argv[2]
    headers_alone = "--cuda-headers" in sys.argv[3:]
    wanted = re.compile("|".join(f"(?:{pattern})" for pattern in (CUDA_HEADERS if headers_alone else WANTED)))
    begin, last, done = time.monotonic(), 0.0, 0
    members, version = [], "of an unknown version"
    for name in sorted(os.listdir(wheels)):
        if found := re.match(r"(torch|nvidia_cuda_runtime|nvidia_cuda_crt|nvidia_cuda_cupti)-([^-+]+).*\.whl$", name):
            if found[1] == "torch":
                version = found[2]
            archive = zipfile.ZipFile(os.path.join(wheels, name))
            members += [(archive, i) for i in archive.infolist() if wanted.fullmatch(i.filename) and not i.is_dir()]
    total = sum(info.file_size for _, info in members)
    for archive, info in members:
        archive.extract(info, into)  # checks each member's CRC; refuses paths that leave the folder
        done += info.file_size
        if time.monotonic() - last > 2:
            last = time.monotonic()
            print(f"   {done / 1e6:.0f} of {total / 1e6:.0f} MB", flush=True)
    for library in OF_CUDA if headers_alone else OF_CPU + OF_CUDA:
        if not os.path.exists(os.path.join(into, library)):
            print(f"error: {library} is not in the wheels under {wheels}", file=sys.stderr)
            return 1
    if not headers_alone:
        with open(os.path.join(into, "skein-complete"), "w", encoding="ascii") as mark:
            mark.write(f"torch {version}, CPU half\n")
    print(f"   {len(members)} files, {total / 1e6:.0f} MB in {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

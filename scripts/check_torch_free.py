#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a header that must not need LibTorch reaches it, in its header-only form, which reads the most.

All layers below `torch`, the simulated world, and the torch-free list of layers.toml. LibTorch is hidden by folders of headers
that stop the preprocessor, in front of every other; the tests compile the headers.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import checks

RULES = checks.rules()


def main() -> int:
    below = RULES["layers"][:RULES["layers"].index("torch")]
    names = [name for _, name, layer in checks.public_headers() if layer in below or checks.matches(name, RULES["torch_free"])]
    compiler = os.environ.get("CXX") or shutil.which("clang++-19") or shutil.which("g++")
    if not compiler:
        print("no compiler found: clang++-19 or g++, or set CXX")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        for header in ("torch/torch.h", "torch/types.h", "torch/nn.h", "ATen/ATen.h", "ATen/core/Tensor.h", "c10/core/Device.h"):
            os.makedirs(os.path.join(folder, "hidden", os.path.dirname(header)), exist_ok=True)
            with open(os.path.join(folder, "hidden", header), "w", encoding="ascii") as file:
                file.write(f'#error "{header} was included by a header that must not need LibTorch"\n')
        source = os.path.join(folder, "torch_free.cpp")
        with open(source, "w", encoding="ascii") as file:
            file.writelines(f"#include <skein/{name}>\n" for name in names)
        done = subprocess.run([compiler, "-std=c++20", "-E", "-o", os.devnull, "-DFMT_HEADER_ONLY", "-pthread", "-w",
                               f"-I{os.path.join(folder, 'hidden')}", f"-I{checks.ROOT}/include", source],
                              capture_output=True, text=True, check=False)
    problems = [done.stderr.replace(folder + "/", "")[:4000]] if done.returncode else []
    return checks.report(problems, f"{len(names)} headers without LibTorch ({os.path.basename(compiler)})")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""find_package(skein COMPONENTS cuda) gives the door to LibTorch's CUDA, and says what it needs where that is not there."""
# label: cuda
import os
import re
import subprocess

import consume

LISTS = """cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(skein REQUIRED COMPONENTS cuda)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE skein::cuda)
set_target_properties(consumer PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
"""
MAIN = """#include <skein/torch/cuda.hpp>
#include <cstdio>
#if !defined(SKEIN_CUDA)
#error "skein::cuda says that it is there"
#endif
int main() {
    std::printf("devices: %d\\n", static_cast<int>(c10::cuda::device_count()));
    try {
        const auto stream = c10::cuda::getStreamFromPool();
        std::printf("a stream of device %d\\n", static_cast<int>(stream.device_index()));
    } catch (const std::exception& why) {
        std::printf("no stream: %.40s\\n", why.what());
    }
    return 0;
}
"""

with consume.scratch() as folder:
    prefix, project = os.path.join(folder, "prefix"), os.path.join(folder, "project")
    build = os.path.join(folder, "build")
    said = consume.run(consume.CMAKE, "-S", consume.SOURCE, "-B", build, *consume.GENERATOR, f"-DCMAKE_CXX_COMPILER={consume.COMPILER}",
                       "-DSKEIN_DEVELOPER_MODE=OFF", "-DSKEIN_COMPILED=OFF", "-DSKEIN_IMAGES=OFF", "-DSKEIN_ETCD=OFF", "-DSKEIN_HTTP=OFF",
                       f"-DCMAKE_INSTALL_PREFIX={prefix}")
    if "what compiles against devices" in said or "tensors and training: no" in said:
        consume.skip("no libc10_cuda.so and headers of CUDA's runtime beside LibTorch (scripts/setup --test)")
    consume.run(consume.CMAKE, "--install", build)
    os.makedirs(project)
    for name, text in (("CMakeLists.txt", LISTS), ("main.cpp", MAIN)):
        with open(os.path.join(project, name), "w", encoding="ascii") as file:
            file.write(text)
    built = os.path.join(folder, "built")
    consume.run(consume.CMAKE, "-S", project, "-B", built, *consume.GENERATOR, *consume.COMPILERS, *consume.FLAGS, f"-DCMAKE_PREFIX_PATH={prefix}")
    consume.run(consume.CMAKE, "--build", built)
    answer = consume.run(os.path.join(built, "consumer"))
    assert "devices: " in answer and "stream" in answer, answer
    # A LibTorch without it: the headers and libraries of the CPU alone.
    bare = os.path.join(folder, "bare", "torch")
    os.makedirs(os.path.join(bare, "lib"))
    with open(os.path.join(built, "build.ninja" if consume.GENERATOR else "CMakeFiles/consumer.dir/flags.make"), encoding="utf-8") as file:
        torch = re.search(r"-idirafter (\S+/torch)/include", file.read()).group(1)
    os.symlink(os.path.join(torch, "include"), os.path.join(bare, "include"))
    for name in ("libtorch_cpu.so", "libc10.so"):
        os.symlink(os.path.join(torch, "lib", name), os.path.join(bare, "lib", name))
    refused = subprocess.run([consume.CMAKE, "-S", project, "-B", os.path.join(folder, "refused"), *consume.GENERATOR, *consume.COMPILERS,
                              f"-DCMAKE_PREFIX_PATH={prefix}"], capture_output=True, text=True, check=False, env={**os.environ, "LIBTORCH": bare})
    assert refused.returncode != 0 and "skein has no component 'cuda' here: it needs libc10_cuda.so" in " ".join(refused.stderr.split()), refused.stderr

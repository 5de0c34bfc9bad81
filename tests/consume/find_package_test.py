#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein installed into a folder is found by find_package, component by component, in both forms."""
import os

import consume

with consume.installed_compiled() as (prefix, said), consume.scratch() as folder:
    assert "skein 0.1.0: off" in said and "tensors and training: no SKEIN_TORCH=OFF" in said, said    # the table says what is off
    assert os.path.exists(os.path.join(prefix, "share", "licenses", "skein", "LICENSE"))
    assert os.path.exists(os.path.join(prefix, "lib", "libskein_runtime.a"))
    consume.expect_check_await(os.path.join(prefix, "lib", "cmake", "skein"))
    if "the program skein" not in said:    # that line says why there is none
        assert consume.run(os.path.join(prefix, "bin", "skein"), "--version").startswith("skein "), "no program skein in bin"
    if consume.shutil.which("pkg-config"):
        # skein.pc of the compiled form brings its library.
        flags = consume.run("pkg-config", "--cflags", "--libs", "skein", env={**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}).split()
        assert "-lskein_runtime" in flags and "-DSKEIN_COMPILED" in flags, flags
        sources = [os.path.join(consume.PROJECT, name) for name in ("main.cpp", "other.cpp")]
        consume.run(consume.COMPILER, "-std=c++20", "-O0", *sources, *flags, "-o", os.path.join(folder, "by_pkg_config"))
        consume.expect_answer(os.path.join(folder, "by_pkg_config"))
    for link, components in (("core", "core"), ("runtime", "runtime"), ("header_only", "header_only"), ("runtime", "")):
        at = os.path.join(folder, link + "_of_" + (components or "all"))
        consume.configure_and_build(at, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCOMPONENTS={components}", f"-DLINK={link}")
    # One program takes one form: mixing them is a link error that says so.
    mixed = consume.subprocess.run([consume.CMAKE, "--build", at, "--target", "mixed"], capture_output=True, text=True, check=False)
    said = mixed.stdout + mixed.stderr
    assert mixed.returncode != 0 and "frame_pool_on_header_only_split_headers" in said and "frame_pool_on_compiled_split_headers" in said, said[-3000:]

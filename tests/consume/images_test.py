#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein::images in both forms and by pkg-config; without libjpeg or libpng configuring says so, and so does the compiler."""
import os
import re
import subprocess

import consume

PICTURE = os.path.join(consume.SOURCE, "tests", "fuzz", "corpus", "image", "bits")
SOURCE = os.path.join(consume.PROJECT, "picture.cpp")
CONFIGURE = [consume.CMAKE, "-S", consume.SOURCE, *consume.GENERATOR, *consume.COMPILERS, "-DSKEIN_DEVELOPER_MODE=OFF", "-DSKEIN_TORCH=OFF"]


def expect_picture(program: str) -> None:
    said = consume.run(program, PICTURE)
    assert said == "48 x 64\n", said


def expect_component(prefix: str, folder: str, form: str) -> None:
    build = os.path.join(folder, form)
    consume.run(consume.CMAKE, "-S", consume.PROJECT, "-B", build, *consume.GENERATOR, *consume.COMPILERS, *consume.FLAGS,
                f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCOMPONENTS={form}", "-DLINK=headers", "-DONE_FILE=ON")
    consume.run(consume.CMAKE, "--build", build, "--target", f"picture_{form}")
    expect_picture(os.path.join(build, f"picture_{form}"))


def expect_pkg_config(folder: str, pc_folder: str) -> None:
    if not consume.shutil.which("pkg-config"):
        return
    flags = consume.run("pkg-config", "--cflags", "--libs", "skein-images", env={**os.environ, "PKG_CONFIG_PATH": pc_folder}).split()
    program = os.path.join(folder, "by_pkg_config")
    consume.run(consume.COMPILER, "-std=c++20", "-O0", SOURCE, *flags, "-o", program)
    expect_picture(program)


def expect_without(folder: str) -> None:
    """Configuring where libpng is not found."""
    hidden = "-DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON"
    said = consume.run(*CONFIGURE, "-B", folder, hidden)
    assert "pictures in pipelines (skein::images): no libpng; to get it: package libpng-dev" in said, said
    wanted = subprocess.run([*CONFIGURE, "-B", folder, hidden, "-DSKEIN_IMAGES=ON"], capture_output=True, text=True, check=False)
    assert wanted.returncode != 0 and "SKEIN_IMAGES=ON but no libpng; install the package libpng-dev" in " ".join(wanted.stderr.split()), wanted.stderr


def expect_one_line(folder: str) -> None:
    """The compiler names the packages, and says nothing else, in both forms."""
    for form in (["-DSKEIN_COMPILED"], ["-DFMT_HEADER_ONLY"]):
        done = subprocess.run([consume.COMPILER, "-std=c++20", "-fsyntax-only", "-DASIO_STANDALONE", *form, *consume.without_headers(os.path.join(folder, form[0]), "jpeglib.h", "png.h"),
                               "-isystem", os.path.join(consume.SOURCE, "include"), SOURCE], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and len(re.findall(r"error:", done.stderr)) == 1, done.stderr
        assert "install the packages libjpeg-dev and libpng-dev" in done.stderr, done.stderr


with consume.scratch() as folder:
    expect_without(os.path.join(folder, "without"))
    expect_one_line(folder)
    header_only = os.path.join(folder, "header_only")
    said = consume.run(*CONFIGURE, "-B", os.path.join(folder, "found"), "-DSKEIN_COMPILED=OFF", f"-DCMAKE_INSTALL_PREFIX={header_only}")
    if "(skein::images)" in said:
        consume.skip("libjpeg or libpng is not here; what is said without them was tested")
    consume.run(consume.CMAKE, "--install", os.path.join(folder, "found"))
    expect_component(header_only, folder, "images_header_only")
    if consume.shutil.which("pkg-config"):    # the flags alone: CMake's program above was compiled with the same ones
        flags = consume.run("pkg-config", "--cflags", "--libs", "skein-images", env={**os.environ, "PKG_CONFIG_PATH": os.path.join(header_only, "share", "pkgconfig")}).split()
        assert "-ljpeg" in flags and "-DSKEIN_COMPILED" not in flags and any(os.path.isdir(os.path.join(flag[2:], "skein")) for flag in flags if flag.startswith("-I")), flags
    with consume.installed_compiled() as (prefix, said):
        expect_component(prefix, folder, "images")
        expect_pkg_config(folder, os.path.join(prefix, "lib", "pkgconfig"))

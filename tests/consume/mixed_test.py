#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of one program that were compiled in different ways do not link, or the program stops at its start.

Two versions, two values of SKEIN_FRAME_POOL, the split headers beside single_include/, and header-only files beside
compiled ones: what stops the program names both configurations. Files alike link and run, with link-time
optimisation, too. The guard is in core/config.hpp, the first of every header, so tiny files show it.
"""
import os
import re
import shutil
import subprocess

import consume

INCLUDE, SINGLE = os.path.join(consume.SOURCE, "include"), os.path.join(consume.SOURCE, "single_include")
FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread"]
LINKERS = ["", "-fuse-ld=lld"] if "clang" in os.path.basename(consume.COMPILER) and (shutil.which("ld.lld") or shutil.which("ld.lld-19")) else [""]
CONFIGURATION = re.compile(r"skein_\d+_\d+_\d+_frame_pool_\w+?_(?:split_headers|single_include)")


def compiled(name: str, text: str, *flags: str) -> str:
    source, made = name + ".cpp", name + ".o"
    with open(source, "w", encoding="ascii") as file:
        file.write(text)
    consume.run(consume.COMPILER, *FLAGS, *flags, "-c", source, "-o", made)
    return made


def built(out: str, *files: str) -> str:
    """What the linker said against it, or nothing."""
    print("+ link", *files, flush=True)
    done = subprocess.run([consume.COMPILER, *files, "-pthread", "-o", out], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode != 0 else ""


def expect_both(said: str, first: str, second: str) -> None:
    found = set(CONFIGURATION.findall(said))
    assert found == {first, second}, f"expected {first} and {second} in: {said}"


def newer_headers(folder: str) -> str:
    """The headers of a later version: all that differs is what config.hpp says."""
    copy = os.path.join(folder, "newer")
    os.makedirs(os.path.join(copy, "skein", "core", "detail"))
    for name in ("config.hpp", "detail/configuration.hpp"):
        with open(os.path.join(INCLUDE, "skein", "core", name), encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(copy, "skein", "core", name), "w", encoding="utf-8") as file:
            file.write(text.replace("#define SKEIN_VERSION_MINOR 1", "#define SKEIN_VERSION_MINOR 2"))
    return copy


MAIN = "#include <skein/core/config.hpp>\nint other();\nint main() { return other(); }\n"
OTHER = "#include <skein/core/config.hpp>\nint other();\nint other() { return 0; }\n"
# All of single_include/ up to the end of the guard is what its first files are: a copy that ends there compiles in no time.
with open(os.path.join(SINGLE, "skein", "skein.hpp"), encoding="utf-8") as opened:
    single = opened.read()
parts = single.split("\n// ======== ")
assert parts[2].startswith("skein/core/detail/configuration.hpp"), "the guard is not the first in single_include/"
SINGLE_GUARD = "\n// ======== ".join(parts[:3])
NAME = "skein_0_1_0_frame_pool_on_header_only_split_headers"

with consume.scratch() as scratch:
    os.chdir(scratch)
    os.makedirs("single/skein/core")
    with open("single/skein/core/config.hpp", "w", encoding="ascii") as guard:
        guard.write(SINGLE_GUARD)
    main, other = compiled("main", MAIN, f"-I{INCLUDE}"), compiled("other", OTHER, f"-I{INCLUDE}")
    mixes = {
        "frame_pool": (compiled("pool", OTHER, f"-I{INCLUDE}", "-DSKEIN_FRAME_POOL=0"), NAME.replace("pool_on", "pool_off")),
        "address_sanitizer": (compiled("asan", OTHER, f"-I{INCLUDE}", "-fsanitize=address"), NAME.replace("pool_on", "pool_off")),
        "version": (compiled("version", OTHER, f"-I{newer_headers(scratch)}"), NAME.replace("0_1_0", "0_2_0")),
        "single_include": (compiled("single", OTHER, "-Isingle"), NAME.replace("split_headers", "single_include")),
        "compiled": (compiled("form", OTHER, f"-I{INCLUDE}", "-DSKEIN_COMPILED"), NAME.replace("header_only", "compiled")),
    }
    for linker in LINKERS:
        how = [linker] if linker else []
        assert built("alike", main, other, *how) == "" and consume.run("./alike") == ""
        for name, (file, configuration) in mixes.items():
            said = built("mixed_" + name, main, file, *how)
            expect_both(said, NAME, configuration)
    # In a library that somebody else made: as soon as one of its files is linked.
    consume.run("ar", "rcs", "libother.a", mixes["version"][0])
    expect_both(built("archive", main, "-L.", "-lother"), NAME, mixes["version"][1])

    # The linker does not see into shared libraries: the program stops at its start.
    for made, text, flags, wanted in (("libalike.so", OTHER, [], ""), ("libmixed.so", OTHER, ["-DSKEIN_FRAME_POOL=0"], mixes["frame_pool"][1])):
        compiled("shared", text, f"-I{INCLUDE}", "-fPIC", *flags)
        consume.run(consume.COMPILER, "-shared", "shared.o", "-o", made)
        assert built("with_" + made, main, "-L.", f"-l:{made}", f"-Wl,-rpath,{scratch}") == ""
        done = subprocess.run(["./with_" + made], capture_output=True, text=True, check=False)
        if wanted:
            assert done.returncode != 0, "it ran"
            expect_both(done.stderr, NAME, wanted)
            assert "compiled in different ways" in done.stderr, done.stderr
        else:
            assert done.returncode == 0 and done.stderr == "", done.stderr

    # Link-time optimisation leaves one copy of the guard, and no false alarm.
    lto = ["-flto", *(["-fuse-ld=lld"] if LINKERS[1:] else [])]
    kinds = [lto] + ([["-flto=thin", "-fuse-ld=lld"]] if LINKERS[1:] else [])
    for kind in kinds if LINKERS[1:] or "clang" not in os.path.basename(consume.COMPILER) else []:
        files = [compiled("lto_" + name, text, f"-I{INCLUDE}", "-O2", kind[0]) for name, text in (("main", MAIN), ("other", OTHER))]
        assert built("lto", *files, "-O2", *kind) == "" and consume.run("./lto") == ""
        differs = compiled("lto_pool", OTHER, f"-I{INCLUDE}", "-O2", kind[0], "-DSKEIN_FRAME_POOL=0")
        said = built("lto", files[0], differs, "-O2", *kind)
        if not said:
            said = subprocess.run(["./lto"], capture_output=True, text=True, check=False).stderr
        expect_both(said, NAME, mixes["frame_pool"][1])
print("files that were compiled in different ways are found")

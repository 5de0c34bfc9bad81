#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_python.py WHEELS LIBTORCH INTO: PyTorch for Python on a CPU, out of the wheel that LibTorch came from.

    torch_python.py --stand-ins INTO [LIBRARY...]     there already: what these libraries of other packages want is stood in for, too

The tests read our files with it (tests/interop); it is no build of PyTorch's own; what runs on a CPU is the wheel's. The wheel's
Python half loads libtorch_cuda.so (500 MB with what it needs in turn), cuDNN and cuFile even where there is no GPU. Here
stand-ins take their place: they define what libtorch_python.so asks for and no other library of the folder has, and a
function of theirs that is called ends the process with its name. Libraries that LIBTORCH (the folder that
unpack_libtorch.py made) holds already are linked, not copied. torchvision's operators want functions of the CUDA half of their own,
and cannot be imported without them. Needs cc, nm and readelf. To import torch 2.15 from there,
TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN has to be skein_cpu_half.without_cuda.
"""
import os
import re
import shutil
import subprocess
import sys
import zipfile

WANTED = re.compile(r"(torch|torchgen|functorch)/.*\.py|torchgen/packaged/.*|torch/_C\.cpython[^/]*\.so|torch-[^/]*\.dist-info/.*"
                    r"|torch/bin/torch_shm_manager|torch/lib/lib(torch_python|torch|torch_global_deps|c10_cuda|shm)\.so")
LINKED = ("torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1", "nvidia/cu13/lib/libcudart.so.13",
          "nvidia/cu13/lib/libcupti.so.13")
STAND_INS = ("libtorch_cuda.so", "libcudnn.so.9", "libcufile.so.0")
PROVIDERS = ("libtorch_cpu.so", "libc10.so", "libc10_cuda.so", "libshm.so", "libtorch.so")

# Called while the library loads, and has to return the address of a pointer.
RETURNS_A_PLACE = "_ZN4c10d15get_gil_checkerEv"
# Called there, too: a default argument of a binding is made, on the heap, and never used. Its table is in the Python half.
MAKES_AN_OBJECT = "_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb"
TABLE_OF_OBJECT = "_ZTVN4c10d16ProcessGroupNCCL7OptionsE"
TRAP = r"""
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((visibility("hidden"))) void skein_no_cuda_half(const char* name) {
    fprintf(stderr, "error: %s is in the CUDA half of PyTorch, which scripts/torch_python.py leaves out\n", name);
    abort();
}
__attribute__((visibility("hidden"))) void skein_zeros(void** object, void* table) {
    memset(object, 0, malloc_usable_size(object));
    *object = table;
}
"""

# torch/_native wraps kernels of CUDA while it is imported; there are none.
CPU_HALF = """def without_cuda(operator, key, graph):
    return [] if key == "CUDA" else graph
"""


def symbols(library: str, which: str) -> set:
    """Names of dynamic symbols, with their version behind @: strong ones that it wants, or those that it defines."""
    text = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
    found = (line.split() for line in text.splitlines())
    return {words[-1] for words in found if words and (which == "--defined-only" or words[0] == "U")}


def needed(library: str) -> list:
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def place_of(name: str) -> str:
    """The library that a missing symbol belongs to."""
    if name.startswith("cudnn"):
        return "libcudnn.so.9"
    return "libcufile.so.0" if name.startswith("cuFile") else "libtorch_cuda.so"


def assembly(names: list) -> str:
    """Functions that say their name and end the process; typeinfo with its name; tables of zeros."""
    lines = [".section .note.GNU-stack,\"\",@progbits"]
    for at, name in enumerate(names):
        label = f".Lname{at}"
        lines += [".section .rodata", f'{label}: .asciz "{name.removeprefix("_ZTI") if name.startswith("_ZTI") else name}"', f".globl {name}"]
        if name.startswith(("_ZTI", "_ZTV")) or name == RETURNS_A_PLACE:
            words = [0] * 64
            if name.startswith("_ZTI"):
                words = ["_ZTVN10__cxxabiv117__class_type_infoE+16", label]
            symbol = ".Lplace" if name == RETURNS_A_PLACE else name
            lines += [".data", ".balign 16", *([] if symbol.startswith(".L") else [f".type {name},@object"]), f"{symbol}:"]
            lines += [f".quad {word}" for word in words]
            if not symbol.startswith(".L"):
                lines.append(f".size {name}, . - {name}")
        if name == RETURNS_A_PLACE:
            lines += [".text", f".type {name},@function", f"{name}: lea .Lplace(%rip), %rax", "ret"]
        elif name == MAKES_AN_OBJECT:
            lines += [".text", f".type {name},@function", f"{name}: mov {TABLE_OF_OBJECT}@GOTPCREL(%rip), %rsi", "add $16, %rsi",
                      "jmp skein_zeros"]
        elif not name.startswith(("_ZTI", "_ZTV")):
            lines += [".text", f".type {name},@function", f"{name}: lea {label}(%rip), %rdi", "jmp skein_no_cuda_half"]
    return "\n".join(lines) + "\n"


def make_stand_in(folder: str, library: str, wanted: list) -> None:
    """`wanted`: names with their versions."""
    names, versions = [name.split("@")[0] for name in wanted], {name.partition("@")[2].lstrip("@") for name in wanted} - {""}
    made = {"stand_in.s": assembly(names), "trap.c": TRAP}
    script = []
    if versions:
        made["versions"] = "".join(f"{version} {{ global: *; }};\n" for version in versions)
        script = ["-Wl,--version-script=versions"]
    for name, text in made.items():
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library + ".new", "stand_in.s", "trap.c", f"-Wl,-soname,{library}", *script, "-lstdc++"],
                   cwd=folder, check=True)
    os.replace(os.path.join(folder, library + ".new"), os.path.join(folder, library))   # a program may have the one before
    for name in made:
        os.unlink(os.path.join(folder, name))


def loaded_by(library: str, into: str) -> list:
    """What else is loaded with it, but for what lies in INTO: libc and its like."""
    loaded = subprocess.run(["ldd", library], capture_output=True, text=True, check=False).stdout
    found = [path for path in re.findall(r"=> (/\S+) \(", loaded)     # not a system's own CUDA: it may be gone tomorrow
             if not path.startswith(os.path.abspath(into)) and os.path.basename(path) not in STAND_INS]
    return found + re.findall(r"^\s*(/\S*ld-linux\S*) \(", loaded, re.M)


def make_stand_ins(into: str, others: list) -> None:
    """`others`: libraries beside PyTorch's Python half."""
    folder = os.path.join(into, "torch", "lib")
    python = os.path.join(folder, "libtorch_python.so")
    providers = [os.path.join(folder, name) for name in PROVIDERS] + [os.path.join(into, "nvidia/cu13/lib/libcudart.so.13")]
    missing: set = set()
    for library in [python, *others]:
        present = providers + loaded_by(library, into) + ([python] if library != python else [])
        defined = {name.split("@")[0] for each in present for name in symbols(each, "--defined-only")}
        missing |= {name for name in symbols(library, "--undefined-only") if name.split("@")[0] not in defined and not re.match(r"_?Py", name)}
    libraries: dict = {library: [] for library in needed(python) if library in STAND_INS}
    for name in sorted(missing):
        libraries.setdefault(place_of(name), []).append(name)
    for library, names in libraries.items():
        make_stand_in(folder, library, names)
    print(f"   stand-ins: {', '.join(f'{library} ({len(names)} names)' for library, names in libraries.items())}")


def main() -> int:
    if sys.argv[1] == "--stand-ins":
        make_stand_ins(sys.argv[2], sys.argv[3:])
        return 0
    wheels, libtorch, into = sys.argv[1:4]
    wheel = next(os.path.join(wheels, name) for name in os.listdir(wheels) if name.startswith("torch-") and name.endswith(".whl"))
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if not info.is_dir() and WANTED.fullmatch(info.filename):
                path = archive.extract(info, into)
                if info.filename.startswith("torch/bin/"):
                    os.chmod(path, 0o755)
    for name in LINKED:
        os.makedirs(os.path.dirname(os.path.join(into, name)), exist_ok=True)
        try:
            os.link(os.path.join(libtorch, name), os.path.join(into, name))
        except OSError:     # another file system
            shutil.copy(os.path.join(libtorch, name), os.path.join(into, name))
    make_stand_ins(into, [])
    with open(os.path.join(into, "skein_cpu_half.py"), "w", encoding="ascii") as file:
        file.write(CPU_HALF)
    return 0


if __name__ == "__main__":
    sys.exit(main())

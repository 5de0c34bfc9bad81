# SPDX-License-Identifier: Apache-2.0
"""What tests and scripts share that run examples with another compiler, or on another machine.

Examples 010 and 020 as one program, so that the headers are compiled once, and where arm64 programs run.
"""
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = {"010": "010_hello_task", "020": "020_actor_counter"}

# The first bytes of an arm64 program, and which bits of them count.
ARM64_MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
ARM64_MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"


def write_both(path: str, root: str = ROOT) -> None:
    """Writes a program that is example 010 or 020, as the variable EXAMPLE says; `root`: the tree, as the compiler sees it."""
    with open(path, "w", encoding="ascii") as file:
        file.write("#include <skein/skein.hpp>\n#include <cstdlib>\n#include <cstring>\n")
        for number, name in EXAMPLES.items():
            file.write(f"#define app app_{number}\n#define main main_{number}\n"
                       f'#include "{root}/examples/{name}.cpp"\n#undef app\n#undef main\n')
        file.write('int main(int argc, char** argv) {\n'
                   '    return std::strcmp(std::getenv("EXAMPLE"), "010") == 0 ? main_010(argc, argv) : main_020(argc, argv);\n}\n')


def expect(name: str, done: subprocess.CompletedProcess) -> None:
    """The example has ended well and has said what its .expected file says."""
    with open(os.path.join(ROOT, "examples", name + ".expected"), encoding="utf-8") as file:
        same = done.stdout == file.read()
    if done.returncode != 0 or not same:
        raise AssertionError(f"{name} ended with {done.returncode} and said\n{done.stdout}{done.stderr}")


def expect_figures(name: str, done: subprocess.CompletedProcess) -> None:
    """The benchmark has printed figures, one JSON object a line; bars do not count here, so its exit status may be 1."""
    try:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        good = lines and all(line["name"].startswith(name.removeprefix("bench_") + ".") and line["value"] > 0 for line in lines)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good or done.returncode not in (0, 1):
        raise AssertionError(f"{name} ended with {done.returncode} and said\n{done.stdout}{done.stderr}")


def make_root(root: str) -> None:
    """A folder that in_root() can take as the root of a program."""
    for name in ("proc", "dev"):
        os.makedirs(os.path.join(root, name))


def in_root(root: str, try_only: bool = False) -> list:
    """The begin of a command that runs in `root`, with /proc and this machine's /dev, and whose processes end with it.

    Without being root it takes a user namespace. try_only: the mounts are made, and the command runs outside.
    """
    script = 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && '
    script += 'shift && exec "$@"' if try_only else 'root="$1" && shift && exec chroot "$root" "$@"'
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", str(root)]


def on_arm64(qemu: str, script: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a shell script where arm64 programs are known.

    Workers execute /proc/self/exe again, so the kernel has to know qemu: binfmt_misc is mounted in a user namespace of its
    own (Linux 6.7 and newer; not in a chroot), and nothing of the host changes. F: qemu is opened before any chroot.
    """
    first = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf '%s' \"$REGISTER\" > /proc/sys/fs/binfmt_misc/register && "
    register = f":qemu-aarch64:M::{ARM64_MAGIC}:{ARM64_MASK}:{qemu}:F"
    return subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", first + script],
                          env={**os.environ, "REGISTER": register, **environment}, capture_output=True, text=True, check=False)

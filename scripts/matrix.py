#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Examples with other compilers and newer libraries: see scripts/matrix, which calls this."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import running

ROOT = running.ROOT
STORE = os.path.join(os.environ["SKEIN_DEPS"], "matrix")
FLAGS = ["-std=c++20", "-O0", "-pthread", "-DFMT_HEADER_ONLY", "-DASIO_STANDALONE"]
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
HEADERS = ["asio", "asio.hpp", "fmt", "boost", "nlohmann", "CLI"]
LIBRARIES = ["libasio-dev", "libfmt-dev", "nlohmann-json3-dev", "libcli11-dev"]


class skipped(Exception):
    """A package cannot be had; the text says which and why."""


def run(*command: str, **more) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def obtain(*command: str, **more) -> str:
    """Runs a command that fetches; without it the row is skipped."""
    try:
        return run(*command, **more)
    except AssertionError as error:
        last = [line for line in str(error).splitlines() if line.strip()][-1]
        raise skipped(f"{os.path.basename(command[0])}: {last}") from error


def stored(name: str, fill) -> str:
    """The folder STORE/name, which fill(folder) makes the first time."""
    folder = os.path.join(STORE, name)
    if not os.path.exists(os.path.join(folder, "skein-complete")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        print(f"-- fetching {name} into {folder}", flush=True)
        fill(folder)
        with open(os.path.join(folder, "skein-complete"), "w", encoding="ascii"):
            pass
    return folder


# ---- packages ------------------------------------------------------------------------------------

def archives() -> list:
    """(address, suite) of each part of the Debian archive that this system's apt knows; the main one first."""
    if not all(map(shutil.which, ["apt-get", "apt-cache", "dpkg-deb"])):
        raise skipped("there is no apt here")
    known = obtain("apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)|$(CODENAME)", "Created-By: Packages")
    parts = [line.split("|") for line in dict.fromkeys(known.splitlines())]
    debian = sorted(((where, suite, label) for origin, label, where, suite in parts if origin == "Debian"),
                    key=lambda part: (part[2] != "Debian", "-" in part[1]))
    if not debian:
        raise skipped("apt knows no archive of Debian")
    return [(where, suite) for where, suite, _ in debian]


class apt_state:
    """Lists and a cache of packages of its own. `status`: which packages count as installed."""

    def __init__(self, folder: str, parts: list, status: str):
        self.folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(folder, name))
        with open(os.path.join(folder, "none"), "w", encoding="ascii"):
            pass
        sources = os.path.join(folder, "sources.list")
        signed = f"[signed-by={KEYRING}] " if os.path.exists(KEYRING) else ""
        with open(sources, "w", encoding="ascii") as file:
            file.writelines(f"deb {signed}{where} {suite} main\n" for where, suite in parts)
        settings = {"Dir::State": folder, "Dir::State::status": status or os.path.join(folder, "none"), "Dir::Cache": f"{folder}/cache",
                    "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "-", "APT::Sandbox::User": "root",
                    "Debug::NoLocking": "true", "Acquire::Retries": "3"}
        self.options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        obtain("apt-get", *self.options, "update")

    def search(self, pattern: str) -> list:
        return re.findall(r"^(\S+) -", obtain("apt-cache", *self.options, "search", "--names-only", pattern), re.M)

    def unpack(self, into: str) -> None:
        """What was downloaded."""
        for package in glob.glob(f"{self.folder}/cache/archives/*.deb") + glob.glob(f"{self.folder}/*.deb"):
            run("dpkg-deb", "-x", package, into)

    def with_dependencies(self, package: str, into: str) -> None:
        if not self.search(f"^{re.escape(package)}$"):
            raise skipped(f"this system's archive has no package {package}")
        obtain("apt-get", *self.options, "install", "-y", "--download-only", "--no-install-recommends", package)
        self.unpack(into)

    def alone(self, packages: list, into: str) -> None:
        obtain("apt-get", *self.options, "download", *packages, cwd=self.folder)
        self.unpack(into)


def fetch_clang(version: int, folder: str) -> None:
    with tempfile.TemporaryDirectory() as state:
        apt_state(state, archives(), "/var/lib/dpkg/status").with_dependencies(f"clang-{version}", folder)


def newest_boost(state: apt_state) -> str:
    found = state.search(r"^libboost1\.[0-9]+-dev$")
    if not found:
        raise skipped("the archive has no libboost1.*-dev")
    return max(found, key=lambda name: int(re.search(r"1\.(\d+)", name).group(1)))


def fetch_libraries(suite: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        state = apt_state(scratch, [(archives()[0][0], suite)], "")
        state.alone([*LIBRARIES, newest_boost(state)], folder)


def fetch_root(folder: str) -> None:
    if os.getuid() != 0:
        raise skipped("debootstrap needs root")
    if not shutil.which("debootstrap"):
        raise skipped("there is no debootstrap (package debootstrap)")
    where = archives()[0][0]
    with tempfile.TemporaryDirectory() as scratch:
        boost = newest_boost(apt_state(scratch, [(where, "trixie")], ""))
    obtain("debootstrap", "--variant=minbase", f"--include={','.join(['g++-13', 'g++-14', *LIBRARIES, boost])}", "trixie", folder, where)


# ---- rows ----------------------------------------------------------------------------------------

def number_in(path: str, pattern: str) -> int:
    with open(path, encoding="utf-8", errors="replace") as file:
        return int(re.search(pattern, file.read()).group(1))


def libraries_in(include: str) -> str:
    """Versions of the libraries under an include folder."""
    asio = number_in(f"{include}/asio/version.hpp", r"define ASIO_VERSION (\d+)")
    fmt_header = next(path for path in (f"{include}/fmt/base.h", f"{include}/fmt/core.h") if os.path.exists(path))
    fmt = number_in(fmt_header, r"define FMT_VERSION (\d+)")
    boost = number_in(f"{include}/boost/version.hpp", r"define BOOST_VERSION (\d+)")
    json_header = next(path for path in (f"{include}/nlohmann/detail/abi_macros.hpp", f"{include}/nlohmann/json.hpp")
                       if os.path.exists(path) and "NLOHMANN_JSON_VERSION_MAJOR" in open(path, encoding="utf-8").read())
    json = [number_in(json_header, rf"define NLOHMANN_JSON_VERSION_{part} (\d+)") for part in ("MAJOR", "MINOR", "PATCH")]
    return (f"Asio {asio // 100000}.{asio // 100 % 1000}.{asio % 100}, fmt {fmt // 10000}.{fmt // 100 % 100}.{fmt % 100}, "
            f"Boost {boost // 100000}.{boost // 100 % 1000}, JSON {'.'.join(map(str, json))}")


def third_parties(include: str, into: str) -> str:
    """A folder with links to the libraries' headers alone: with all of an include folder its C library would come along."""
    for name in HEADERS:
        if os.path.exists(os.path.join(include, name)):
            os.symlink(os.path.join(include, name), os.path.join(into, name))
    return into


def version_of(said: str) -> str:
    return re.search(r"\d+\.\d+\.\d+", said).group(0)


def compile_and_run(compiler: list, more: list, scratch: str, environment: dict) -> None:
    source, program = os.path.join(scratch, "examples.cpp"), os.path.join(scratch, "examples")
    running.write_both(source)
    run(*compiler, *FLAGS, f"-I{ROOT}/include", *more, source, "-o", program, env={**os.environ, **environment})
    for number, name in running.EXAMPLES.items():
        done = subprocess.run([program], env={**os.environ, "EXAMPLE": number}, capture_output=True, text=True, check=False)
        running.expect(name, done)


def clang(version: int):
    def row(scratch: str) -> tuple:
        installed = shutil.which(f"clang++-{version}")
        folder, environment = "/", {}
        if not installed:
            folder = stored(f"clang-{version}", lambda folder: fetch_clang(version, folder))
            environment["LD_LIBRARY_PATH"] = f"{folder}/usr/lib/x86_64-linux-gnu:{folder}/usr/lib/llvm-{version}/lib"
        compiler = installed or f"{folder}/usr/lib/llvm-{version}/bin/clang++"
        begin = time.monotonic()
        compile_and_run([compiler], [], scratch, environment)
        seconds = time.monotonic() - begin
        return f"clang {version_of(run(compiler, '--version', env={**os.environ, **environment}))}", libraries_in("/usr/include"), seconds
    return row


def libraries(suite: str):
    def row(scratch: str) -> tuple:
        folder = stored(f"libraries-{suite}", lambda folder: fetch_libraries(suite, folder))
        compiler = shutil.which("clang++-19") or "g++"
        front = os.path.join(scratch, "include")
        os.mkdir(front)
        begin = time.monotonic()
        compile_and_run([compiler], ["-isystem", third_parties(f"{folder}/usr/include", front)], scratch, {})
        seconds = time.monotonic() - begin
        return f"{os.path.basename(compiler).split('+')[0]} {version_of(run(compiler, '--version'))}", libraries_in(front), seconds
    return row


def gcc(version: int):
    def row(scratch: str) -> tuple:
        root = stored("debian-13", fetch_root)
        for name in ("srv/skein", "srv/out"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
        running.write_both(os.path.join(scratch, "examples.cpp"), "/srv/skein")

        def inside(script: str) -> subprocess.CompletedProcess:
            mounts = ('mount --bind "$SKEIN" "$TREE/srv/skein" && mount --bind "$SCRATCH" "$TREE/srv/out" && mount --rbind /dev "$TREE/dev" && '
                      'mount -t proc proc "$TREE/proc" && exec chroot "$TREE" /bin/sh -c "cd /srv/out && $SCRIPT"')
            return subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", mounts], capture_output=True, text=True, check=False,
                                  env={"PATH": os.environ["PATH"], "SKEIN": ROOT, "SCRATCH": scratch, "TREE": root, "SCRIPT": script})

        begin = time.monotonic()
        made = inside(f"g++-{version} {' '.join(FLAGS)} -I/srv/skein/include examples.cpp -o examples")
        if made.returncode != 0:
            raise AssertionError(made.stderr[-4000:])
        for number, name in running.EXAMPLES.items():
            running.expect(name, inside(f"EXAMPLE={number} exec ./examples"))
        seconds = time.monotonic() - begin
        return f"g++ {version_of(inside(f'g++-{version} -dumpfullversion').stdout)}", libraries_in(f"{root}/usr/include"), seconds
    return row


# ---- programs ------------------------------------------------------------------------------------

def run_in_empty_root(program: str, scratch: str) -> subprocess.CompletedProcess:
    """Runs a static program in a root that holds it, /proc and /dev, and nothing else."""
    root = tempfile.mkdtemp(dir=scratch)
    running.make_root(root)
    shutil.copy(program, root)
    return subprocess.run([*running.in_root(root), "/" + os.path.basename(program)], env={"PATH": os.environ["PATH"]},
                          capture_output=True, text=True, check=False)


def programs(machine: str):
    names = ["010_hello_task", "020_actor_counter", "030_asio_inside"]
    figures = ["bench_core", "bench_wire", "bench_net", "bench_rt"]

    def make(output: str, *wanted: str) -> None:
        run(os.path.join(ROOT, "scripts", "programs"), "--output", output, "--targets", machine, *wanted)

    def runner(scratch: str):
        if machine == os.uname().machine:
            return lambda program: run_in_empty_root(program, scratch)
        qemu = shutil.which("qemu-aarch64-static")
        if machine != "aarch64" or not qemu:
            raise skipped("there is no qemu-aarch64-static (package qemu-user-static)")
        possible = running.on_arm64(qemu, "true")
        if possible.returncode != 0:
            raise skipped(f"no binfmt_misc in a user namespace (a chroot, or Linux before 6.7): {possible.stderr.strip()}")
        return lambda program: running.on_arm64(qemu, f"exec {program}")

    def row(scratch: str) -> tuple:
        start = runner(scratch)
        obtain(os.path.join(ROOT, "scripts", "programs"), "--setup")
        begin = time.monotonic()
        make(scratch, *names, *figures)
        for name in names:
            running.expect(name, start(os.path.join(scratch, machine, name)))
        for name in figures if machine == os.uname().machine else ():   # times of an emulated machine say nothing
            running.expect_figures(name, start(os.path.join(scratch, machine, name)))
        seconds = time.monotonic() - begin
        again = [names[0], "bench_wire"]
        make(os.path.join(scratch, "again"), *again)
        for name in again:
            with open(os.path.join(scratch, machine, name), "rb") as one, open(os.path.join(scratch, "again", machine, name), "rb") as two:
                assert one.read() == two.read(), f"{name} made twice has other bytes"
        python = os.path.join(os.environ["SKEIN_DEPS"], "zig", "bin", "python")
        zig = run(python, "-m", "ziglang", "version").strip()
        clang_of_zig = version_of(run(python, "-m", "ziglang", "c++", "--version"))
        return f"clang {clang_of_zig} of zig {zig}, libc++ and musl", libraries_in("/usr/include"), seconds
    return row


def curves_with(version: str, scratch: str) -> dict:
    """strategy -> metrics.csv of a short training by example 120, built with that LibTorch."""
    deps, build = os.environ["SKEIN_DEPS"], os.path.join(scratch, f"build-{version}")
    obtain(os.path.join(ROOT, "scripts", "setup"), "--no-system", "--torch", version)
    flags = [f"-DCMAKE_CXX_COMPILER={shutil.which('clang++-19') or 'g++'}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g0",
             f"-DLIBTORCH={deps}/libtorch-{version}-cpu", "-DSKEIN_TESTS=OFF", "-DSKEIN_BENCH=OFF"]
    if shutil.which("ccache"):
        flags.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *flags)
    run("cmake", "--build", build, "--target", "120_gpt_fsdp")
    curves = {}
    for strategy in ("ddp", "fsdp"):
        run(os.path.join(build, "examples", "120_gpt_fsdp"), "--strategy", strategy, "--workers", "2", "--steps", "20", "--layers", "2", "--dim", "64",
            "--batch", "8", "--eval-every", "10", "--text", os.path.join(ROOT, "docs"), "--runs", build, "--run", strategy, "--plain")
        with open(os.path.join(build, strategy, "metrics.csv"), "rb") as file:
            curves[strategy] = file.read()
    return curves


def libtorch(version: str):
    """The oldest LibTorch that is tested: it compiles, and training has the bytes that the pinned one gives."""
    def row(scratch: str) -> tuple:
        with open(os.path.join(ROOT, "scripts", "common.sh"), encoding="utf-8") as file:
            pinned = re.search(r"^skein_torch_version=([\d.]+)", file.read(), re.M).group(1)
        begin = time.monotonic()
        old, new = curves_with(version, scratch), curves_with(pinned, scratch)
        for strategy, curve in old.items():
            assert curve == new[strategy], f"metrics.csv of {strategy} differ: LibTorch {version}\n{curve.decode()}\n{pinned}\n{new[strategy].decode()}"
        seconds = time.monotonic() - begin
        compiler = shutil.which("clang++-19") or "g++"
        return (f"{os.path.basename(compiler).split('+')[0]} {version_of(run(compiler, '--version'))}",
                f"LibTorch {version}: the same bytes as {pinned} under {' and '.join(old)}", seconds)
    return row


def headers(_scratch: str) -> tuple:
    """Each header without LibTorch alone, in the header-only form."""
    compiler = shutil.which("clang++-19") or "g++"
    begin = time.monotonic()
    run(sys.executable, os.path.join(ROOT, "cmake", "headers_alone.py"), "header-only", compiler)
    seconds = time.monotonic() - begin
    return f"{os.path.basename(compiler).split('+')[0]} {version_of(run(compiler, '--version'))}", libraries_in("/usr/include"), seconds


ROWS = {"headers": headers, "clang-16": clang(16), "clang-22": clang(22), "gcc-13": gcc(13), "gcc-14": gcc(14),
        "libraries-trixie": libraries("trixie"), "libraries-sid": libraries("sid"),
        "libtorch-2.11.0": libtorch("2.11.0"),
        "programs-x86_64": programs("x86_64"), "programs-aarch64": programs("aarch64")}


def main() -> None:
    wanted = sys.argv[1:] or list(ROWS)
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        sys.exit(f"error: unknown row {unknown[0]}; rows: {' '.join(ROWS)}")
    table, failed = [], []
    for name in wanted:
        print(f"-- {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="skein-matrix-") as scratch:
            try:
                compiler, found, seconds = ROWS[name](scratch)
                table.append(f"| {name} | {compiler} | {found} | {seconds:.0f} | passed |")
            except skipped as reason:
                table.append(f"| {name} | - | - | - | skipped: {reason} |")
            except Exception as error:      # a row must not hide those after it
                print(f"{type(error).__name__}: {error}", flush=True)
                table.append(f"| {name} | - | - | - | FAILED |")
                failed.append(name)
        print(table[-1], flush=True)
    print("\n| row | compiler | libraries | seconds | result |\n|---|---|---|---|---|")
    print("\n".join(table), flush=True)
    if failed:
        sys.exit(f"error: failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()

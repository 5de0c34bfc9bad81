#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the checks on a device: see scripts/gpu-check, which calls this."""
import argparse
import concurrent.futures
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

OLDEST_TORCH = (2, 11)
FLAGS = ["-std=c++20", "-O0", "-g0", "-pthread", "-DFMT_HEADER_ONLY", "-DASIO_STANDALONE"]
CONFORMANCE = ["tests/dist/device_conformance_test.cpp", "tests/dist/host_communicator_test.cpp", "tests/dist/cuda_runtime_test.cpp",
               "tests/dist/nccl_test.cpp"]
DOORS = ["tests/cuda/doors_test.cpp", "tests/cuda/cuda_math_test.cpp", "tests/cuda/nccl_header_test.cpp"]
# Header-only it is one file that takes minutes; so it is three beside each other.
PROGRAM = ["tests/programs/skein_device_check.cpp", "src/skein.cpp", "src/skein_train.cpp"]
TRAINING = ["single", "ddp", "fsdp"]
STEPS = ["conformance", "shared", "doors", *TRAINING]
SHARED_NCCL = 23000
LIMIT, COMPILE_LIMIT = 600, 1800   # seconds


class missing(Exception):
    """Something that the checks are built with is not here; the text says what to do."""


class torch_folder:
    """A LibTorch: include/ and lib/, and the libraries of CUDA beside it."""

    def __init__(self, folder: str):
        self.folder = os.path.realpath(folder)
        version = ""
        for header in ("torch/headeronly/version.h", "torch/version.h", "torch/csrc/api/include/torch/version.h"):
            path = os.path.join(self.folder, "include", header)
            if not version and os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    found = re.findall(r"define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", file.read())
                version = ".".join(found[:3])
        if not version or not os.path.exists(os.path.join(self.lib, "libtorch_cpu.so")):
            raise missing(f"{self.folder} has no headers and libraries of torch; set LIBTORCH=<folder with include/ and lib/>")
        self.version = version
        if tuple(map(int, version.split(".")))[:2] < OLDEST_TORCH:
            raise missing(f"torch {version} of {self.folder} is older than 2.11; name a newer one by LIBTORCH or --python")
        self.has_cuda = os.path.exists(os.path.join(self.lib, "libtorch_cuda.so"))
        beside = os.path.dirname(self.folder)
        self.library_folders = [self.lib] + sorted(
            {os.path.dirname(path) for name in ("libcudart.so.1*", "libnccl.so.2") for path in glob.glob(f"{beside}/nvidia/*/lib/{name}")})
        self.cudart = next(iter(sorted(glob.glob(f"{beside}/nvidia/*/lib/libcudart.so.1*"))), "")
        self.cuda_headers = next((folder for folder in sorted(glob.glob(f"{beside}/nvidia/*/include")) + ["/usr/local/cuda/include"]
                                  if os.path.exists(f"{folder}/cuda_runtime_api.h") and os.path.exists(f"{folder}/crt/host_defines.h")), "")

        self.nccl_headers = next((folder for folder in (f"{beside}/nvidia/nccl/include",) if os.path.exists(f"{folder}/nccl.h")), "")

    @property
    def lib(self) -> str:
        return os.path.join(self.folder, "lib")

    def compile_flags(self) -> list:
        return ["-idirafter", f"{self.folder}/include", "-idirafter", f"{self.folder}/include/torch/csrc/api/include"]

    def link_flags(self, with_c10_cuda: bool) -> list:
        names = ["torch_cpu", "c10"] + (["torch_cuda"] if self.has_cuda else [])
        if (self.has_cuda or with_c10_cuda) and os.path.exists(f"{self.lib}/libc10_cuda.so"):
            names.append("c10_cuda")
        flags = ["-Wl,--no-as-needed"] + [f"{self.lib}/lib{name}.so" for name in names]
        if with_c10_cuda and self.cudart:
            flags.append(self.cudart)
        # What the CUDA half needs in turn is found when it is loaded.
        return flags + ["-Wl,--allow-shlib-undefined"] + [f"-Wl,-rpath,{folder}" for folder in self.library_folders]


def find_torch(python: str) -> torch_folder:
    if os.environ.get("LIBTORCH"):
        return torch_folder(os.environ["LIBTORCH"])
    if not python:
        own = os.path.join(os.environ.get("VIRTUAL_ENV", ""), "bin", "python")
        python = own if os.environ.get("VIRTUAL_ENV") and os.path.exists(own) else "python3"
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise missing(f"{python} has no torch; name one that has by --python, or a folder by LIBTORCH")
    return torch_folder(found)


def find_compiler() -> str:
    for name in [os.environ["CXX"]] if os.environ.get("CXX") else ["clang++-19", "clang++", "g++"]:
        if shutil.which(name):
            return name
    raise missing("no compiler: install g++ 12 or clang 16, or newer, or name one by CXX")


class check:
    """One folder that gpu-pack made, and what its programs say here."""

    def __init__(self, options):
        self.folder = os.path.realpath(options.folder)
        if not os.path.exists(os.path.join(self.folder, "commit")):
            raise missing(f"{self.folder} is not what scripts/gpu-pack makes: it has no file 'commit'")
        with open(os.path.join(self.folder, "commit"), encoding="utf-8") as file:
            self.commit = file.read().strip()
        self.tree = os.path.join(self.folder, "skein")
        self.build, self.results = os.path.join(self.folder, "build"), os.path.join(self.folder, "results")
        self.compiler = find_compiler()
        self.torch = find_torch(options.python)
        self.steps = options.only or STEPS
        self.outcomes, self.figures = [], []   # (step, outcome, words), JSON lines
        shutil.rmtree(self.results, ignore_errors=True)
        os.makedirs(self.results)
        os.makedirs(self.build, exist_ok=True)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
        folders = self.torch.library_folders + [self.environment.get("LD_LIBRARY_PATH", "")]
        self.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))

    # ---- building --------------------------------------------------------------------------------
    def command(self, *more: str) -> list:
        launcher = ["ccache"] if shutil.which("ccache") else []
        return [*launcher, self.compiler, *FLAGS, f"-I{self.tree}/include", f"-I{self.tree}", f"-I{self.tree}/tests", f"-I{self.tree}/tests/dist",
                "-isystem", f"{self.folder}/deps/include", *more]

    def wanted(self) -> dict:
        """Programs with their sources, and how they are compiled and linked."""
        catch2 = [f"{self.folder}/deps/lib/libCatch2Main.a", f"{self.folder}/deps/lib/libCatch2.a"]
        programs = {}
        if set(TRAINING) & set(self.steps):   # it takes longest
            programs["training"] = (PROGRAM, ["-DSKEIN_COMPILED", *self.torch.compile_flags()], self.torch.link_flags(False))
        if "conformance" in self.steps or "shared" in self.steps:
            programs["conformance"] = (CONFORMANCE, [], catch2)
        if "doors" in self.steps and self.torch.cuda_headers:
            flags = [*self.torch.compile_flags(), "-idirafter", self.torch.cuda_headers]
            if self.torch.nccl_headers:   # else the test of what is declared says that it was skipped
                flags += ["-idirafter", self.torch.nccl_headers]
            programs["doors"] = (DOORS, flags, [*catch2, *self.torch.link_flags(True)])
        return programs

    def build_all(self) -> bool:
        """False: something does not compile, or link."""
        begin, tasks, good = time.monotonic(), {}, True
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SKEIN_JOBS", "2"))) as pool:
            for program, (sources, flags, _) in self.wanted().items():
                for source in sources:
                    to = os.path.join(self.build, program + "-" + os.path.basename(source) + ".o")
                    command = self.command(*flags, "-c", os.path.join(self.tree, source), "-o", to)
                    done = pool.submit(self.logged, "build", command, COMPILE_LIMIT)
                    tasks.setdefault(program, []).append((source, to, done))
        for program, parts in tasks.items():
            failed = [source for source, _, done in parts if done.result() != 0]
            link = self.command(*[to for _, to, _ in parts], *self.wanted()[program][2], "-ldl", "-o", os.path.join(self.build, program))
            if not failed and self.logged("build", link) != 0:
                failed = ["linking"]
            if failed:
                good = False
                self.tell(f"build of {program}", "failed", f"{', '.join(failed)}; see results/build.log")
        took = time.monotonic() - begin
        if good:
            self.tell("build", "passed", f"{', '.join(tasks)} with {self.compiler} in {took:.0f} s")
        self.add_figure({"figure": "build", "value": round(took, 1), "unit": "s", "cores": os.cpu_count()})
        return good

    def logged(self, name: str, command: list, limit: int = LIMIT, **more: str) -> int:
        """Runs it; what it says is behind the rest of the log. Its exit code."""
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, check=False,
                                  env={**self.environment, **more})
            code, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as why:
            code, said = 124, f"did not end within {limit} s\n{why.stdout or ''}"
        except OSError as why:
            code, said = 127, f"{why}\n"
        with open(os.path.join(self.results, name + ".log"), "a", encoding="utf-8") as log:
            log.write("+ " + " ".join(command) + "\n" + said + f"exit {code}\n")
        return code

    # ---- running ---------------------------------------------------------------------------------
    def survey(self) -> None:
        """What is here: self.devices, why there are none, and the words that go with each figure."""
        self.devices, self.lacking, self.known = 0, "", {}
        if os.path.exists(os.path.join(self.build, "training")):
            said = None
            try:
                said = subprocess.run([os.path.join(self.build, "training"), "survey"], capture_output=True, text=True, check=False,
                                      env=self.environment, timeout=LIMIT)
                self.known = json.loads(said.stdout)
                self.devices, self.lacking = self.known["devices"], self.known["lacking"]
            except subprocess.TimeoutExpired:
                self.lacking = f"the program that asks for devices did not end within {LIMIT} s: the driver hangs"
            except ValueError:
                self.lacking = f"the program does not run: {(said.stderr or said.stdout).strip()[-300:]}"
        rows = []
        if shutil.which("nvidia-smi"):
            try:
                asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                                       text=True, check=False, timeout=60)
                rows = asked.stdout.strip().splitlines() if asked.returncode == 0 else []
            except subprocess.TimeoutExpired:
                self.lacking = self.lacking or "nvidia-smi did not end within 60 s: the driver hangs"
        if not self.known:   # only checks without torch were built
            self.devices = len(rows)
            self.lacking = self.lacking or ("" if rows else "no device that nvidia-smi shows")
        name, _, driver = (rows[0] if rows else ", ").partition(", ")
        number = self.known.get("cuda", 0)
        nccl = self.known.get("nccl", 0)
        self.about = {"device": name or "none", "devices": self.devices, "driver": driver or "none",
                      "cuda": f"{number // 1000}.{number % 1000 // 10}" if number else "none",
                      "nccl": f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}" if nccl else "none",
                      "torch": self.torch.version, "commit": self.commit, "date": datetime.date.today().isoformat()}

    def add_figure(self, figure: dict) -> None:
        self.figures.append(figure)

    def tell(self, step: str, outcome: str, words: str) -> None:
        self.outcomes.append((step, outcome, words))
        print(f"-- {step}: {outcome}{': ' + words if words else ''}", flush=True)

    def run_catch(self, step: str, program: str, **more: str) -> None:
        path = os.path.join(self.build, program)
        begin = time.monotonic()
        code = self.logged(step, [path], **more)
        with open(os.path.join(self.results, step + ".log"), encoding="utf-8") as log:
            said = log.read()
        counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped)", (re.findall(r"test cases:.*", said) or [""])[-1])}
        whole = re.search(r"All tests passed \((\d+) assertions? in (\d+) test cases?\)", said)
        if whole:
            counts = {"passed": int(whole.group(2))}
        for kind, number in sorted(counts.items()):
            self.add_figure({"figure": f"{step}: test cases {kind}", "value": number, "unit": "cases"})
        words = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) + f" in {time.monotonic() - begin:.0f} s"
        self.tell(step, "passed" if code == 0 else "failed", words if code == 0 else f"{words}; exit {code}, see results/{step}.log")

    def run_training(self, step: str) -> None:
        to = os.path.join(self.build, step + ".jsonl")
        if os.path.exists(to):
            os.remove(to)
        code = self.logged(step, [os.path.join(self.build, "training"), step, to])
        lines = []
        if os.path.exists(to):
            with open(to, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file if line.strip()]
        for line in lines:
            self.add_figure({**line, "unit": "relative" if "weights" in line["figure"] else "absolute"})
        words = ", ".join(f"{line['figure'].split(' ')[1]} {line['value']:g} apart" for line in lines)
        self.tell(step, "passed" if code == 0 else "failed", words if code == 0 else f"{words}; exit {code}, see results/{step}.log")

    def run_all(self) -> None:
        for step in self.steps:
            if self.devices == 0:
                self.tell(step, "skipped", self.lacking)
            elif step == "doors" and not os.path.exists(os.path.join(self.build, "doors")):
                self.tell(step, "skipped", "no headers of CUDA's runtime beside torch, nor in /usr/local/cuda")
            elif step == "shared" and self.known.get("nccl", 0) < SHARED_NCCL:
                self.tell(step, "skipped", f"NCCL {self.about['nccl']} is older than 2.30, which lets ranks share a device")
            elif step == "shared":
                self.run_catch(step, "conformance", NCCL_MULTI_RANK_GPU_ENABLE="1")
            elif step in TRAINING:
                self.run_training(step)
            else:
                self.run_catch(step, step)

    def write(self) -> None:
        with open(os.path.join(self.results, "figures.jsonl"), "w", encoding="utf-8") as file:
            for figure in self.figures:
                file.write(json.dumps({**figure, **self.about}) + "\n")
        about = ", ".join(f"{name} {value}" for name, value in self.about.items() if name not in ("date", "commit", "devices"))
        lines = [f"### A device, {self.about['date']}", "",
                 f"`scripts/gpu-check` of commit {self.about['commit'][:12]}{self.about['commit'][40:]}: {about}; {self.devices} "
                 f"device{'' if self.devices == 1 else 's'}, {os.cpu_count()} cores, {self.compiler}.", "", "| step | outcome | |", "|---|---|---|"]
        lines += [f"| {step} | {outcome} | {words.replace('|', '/')} |" for step, outcome, words in self.outcomes]
        if self.devices == 0:
            lines += ["", "**Nothing ran on a device.**"]
        with open(os.path.join(self.results, "report.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        print(f"-- {os.path.join(self.results, 'report.md')}")

    def code(self) -> int:
        outcomes = [outcome for step, outcome, _ in self.outcomes if not step.startswith("build")]
        if any(outcome == "failed" for _, outcome, _ in self.outcomes):
            return 1
        return 0 if "passed" in outcomes else 77


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", add_help=False)
    parser.add_argument("folder")
    parser.add_argument("--python", default="")
    parser.add_argument("--only", nargs="+", choices=STEPS)
    options = parser.parse_args()
    try:
        here = check(options)
    except missing as why:
        print(f"error: {why}", file=sys.stderr)
        return 2
    good = here.build_all()
    here.survey()
    if good:
        here.run_all()
    here.write()
    return here.code()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What compiling a user's file costs: the first example of each part against a baseline, one JSON line per figure.

examples/010_hello_task.cpp, compiled form and header-only, against asio_timer.cpp (asio.hpp and one timer);
examples/100_train.cpp against torch_linear.cpp (torch/torch.h and one linear layer). One object file each, -O2, no
precompiled header, no compiler cache, in turns; seconds are processor time of the compiler, the median of the rounds.

    scripts/bench build

Environment: SKEIN_BUILD_ROUNDS (default 3), SKEIN_BUILD_ONLY (hello or train), SKEIN_BUILD_TREE (another tree of skein,
for a comparison).
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TREE = os.environ.get("SKEIN_BUILD_TREE", ROOT)
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import compiling    # noqa: E402

# The bars are the most that ratios may be: what a file with skein may cost, in files without it. The header-only one is half of what it was
# when every body was parsed and emitted by every file.
BARS = {"hello.compiled": 3.0, "hello.header_only": 5.5, "train.compiled": 1.5}


def figure(name: str, seconds: float, baseline: str, baseline_seconds: float) -> None:
    ratio, bar = seconds / baseline_seconds, BARS.get(name)
    line = {"name": f"build.{name}", "value": round(seconds, 2), "unit": "s", "baseline": baseline,
            "baseline_value": round(baseline_seconds, 2), "ratio": round(ratio, 2), "bar": bar, "ok": None if bar is None else ratio <= bar}
    print(json.dumps(line), flush=True)


def measure(group: str, example: str, baseline: str, more: list, rounds: int) -> None:
    compiler = compiling.compiler()
    common = [compiler, "-std=c++20", "-O2", "-pthread", *more, "-c", "-o"]
    with tempfile.TemporaryDirectory(prefix="skein-build-") as folder:
        out = os.path.join(folder, "out.o")
        commands = {form: [*common, out, *flags, f"-I{TREE}/include", os.path.join(TREE, "examples", example)]
                    for form, flags in compiling.forms().items()}
        commands["baseline"] = [*common, out, os.path.join(HERE, baseline)]
        times = compiling.in_turns(commands, rounds)
    for form in compiling.forms():
        figure(f"{group}.{form}", times[form], baseline, times["baseline"])


def main() -> int:
    rounds = int(os.environ.get("SKEIN_BUILD_ROUNDS", "3"))
    only = os.environ.get("SKEIN_BUILD_ONLY", "")
    if not compiling.compiler():
        print("build: skipped, no compiler", file=sys.stderr)
        return 0
    if only in ("", "hello"):
        measure("hello", "010_hello_task.cpp", "asio_timer.cpp", [], rounds)
    torch = compiling.libtorch_flags()
    if only in ("", "train") and torch:
        measure("train", "100_train.cpp", "torch_linear.cpp", torch, rounds)
    elif not torch:
        print("build: train skipped, no LibTorch", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

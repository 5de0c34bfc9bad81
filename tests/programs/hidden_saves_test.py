#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of runs on a device whose memory the host cannot read are those of the CPU, byte by byte, and each goes on where the other has ended.

    hidden_saves_test.py [CASE...]
"""
# label: train;cuda
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import environment, find_program  # noqa: E402


def train(runs, code=0, **options):
    """What a run says: {step: loss}, and {"weights": ..., "loaded": ..., "exported": ...}."""
    flags = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), str(value))]
    done = subprocess.run([find_program("skein_hidden_saves"), str(runs), *flags], capture_output=True, text=True, timeout=300, check=False, env=environment())
    said = done.stdout + done.stderr
    if done.returncode == 77:
        print("skipped: this LibTorch has devices of its own")
        sys.exit(77)
    assert done.returncode == code, f"{flags}: exit {done.returncode}\n{said}"
    if options.get("beside") == "yes":
        assert "saves are written beside training" in said, f"{flags}: they hold it up\n{said}"
    losses = {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)$", said, re.M)}
    return losses, dict(re.findall(r"^(weights|loaded|exported) (.+)$", said, re.M))


def checkpoint(runs, step):
    folder, = pathlib.Path(runs).glob(f"run/checkpoints/step-*{step}")
    return folder


def shards(runs, step):
    """The tensors of a checkpoint, as they are on disk."""
    found = {path.name: path.read_bytes() for path in sorted(checkpoint(runs, step).glob("*.safetensors"))}
    assert found, f"no file of tensors in {checkpoint(runs, step)}"
    return found


def whole_runs(base, strategy, workers, both=False, **more):
    """8 steps on the CPU, on the device and, with `both`, there with saves beside them: losses and checkpoints are the same."""
    runs = {}
    for name, place, beside in (("cpu", "cpu", "no"), ("device", "device", "no"), ("beside", "device", "yes"))[: 3 if both else 2]:
        losses, end = train(base / name, strategy=strategy, workers=workers, on=place, beside=beside, export=base / (name + "-weights"), **more)
        runs[name] = (losses, end, {step: shards(base / name, step) for step in (2, 4, 6, 8)})
        print(f"{strategy}, {workers} workers, {name}: {end}", flush=True)
    losses, end, _ = runs["cpu"]
    assert sorted(losses) == list(range(1, 9)), losses
    assert end["loaded"] == f"8 {end['weights']}" and end["exported"] == end["weights"], end
    for name, got in runs.items():
        assert got[:2] == runs["cpu"][:2], (name, got[:2], runs["cpu"][:2])
        assert got[2] == runs["cpu"][2], f"{name}: a checkpoint is another one than on the CPU"
    return runs["cpu"]


def go_on(base, strategy, workers, first, second):
    """From step 4 of a whole run on `first`, on `second`."""
    runs = base / f"{first}-{second}-{workers}"
    shutil.copytree(base / first, runs)
    for step in (6, 8):
        shutil.rmtree(checkpoint(runs, step))
    losses, end = train(runs, strategy=strategy, workers=workers, on=second, resume="yes", export=runs / "weights")
    print(f"{strategy}, step 4 of {first}, with {workers} workers on {second}: {end}", flush=True)
    assert sorted(losses) == [5, 6, 7, 8], losses
    return losses, end, {step: shards(runs, step) for step in (6, 8)}


def check(base, strategy, workers, both=False):
    losses, end, saved = whole_runs(base, strategy, workers, both)
    for first, second in (("device", "cpu"), ("cpu", "device")):
        more, other, later = go_on(base, strategy, workers, first, second)
        assert {**losses, **more} == losses and other == end, (first, second, more, losses, other, end)
        assert all(later[step] == saved[step] for step in later), f"{first}, then {second}: a checkpoint is another one"
    return end


def case_single(base):
    check(base, "single", 1, both=True)


def case_ddp(base):
    check(base, "ddp", 2, both=True)


def case_fsdp(base):
    check(base, "fsdp", 2, both=True)
    reference = go_on(base, "fsdp", 3, "cpu", "cpu")
    for first, second in (("device", "cpu"), ("cpu", "device")):
        assert go_on(base, "fsdp", 3, first, second) == reference, f"{first}, then {second} in another world"


def case_single_in_bfloat16(base):
    """What a program writes to its parameters of 16 bits is in the masters that are saved, too."""
    plain = check(base, "single-bf16", 1)
    (base / "written").mkdir()
    assert whole_runs(base / "written", "single-bf16", 1, write="yes")[1] != plain


def case_ranks_in_bfloat16(base):
    for strategy in ("ddp-bf16", "fsdp-bf16"):
        (base / strategy).mkdir()
        whole_runs(base / strategy, strategy, 2)


def case_sums_in_bfloat16(base):
    whole_runs(base, "fsdp-bf16-bf16", 2)


def case_stopped(base):
    """SIGTERM ends a run on the device with a checkpoint, with which the CPU goes on."""
    whole, ends = train(base / "whole")
    first, _ = train(base / "stopped", code=143, on="device", stop_at=3)
    last = max(first)
    assert 3 <= last < 8, first
    more, end = train(base / "stopped", resume="yes")
    assert min(more) == last + 1 and {**first, **more} == whole and end == ends, (first, more, whole, end, ends)


def main():
    cases = {name[len("case_"):]: case for name, case in globals().items() if name.startswith("case_")}
    for name in sys.argv[1:] or cases:
        with tempfile.TemporaryDirectory() as base:
            cases[name](pathlib.Path(base))
        print(f"-- {name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())

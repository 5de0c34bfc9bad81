# SPDX-License-Identifier: Apache-2.0
"""What a training's run tells: its worlds, its rows, its weights."""
import json
import pathlib
import re
import struct


def views(run):
    """The process ids of each world in turn, in the order of ranks."""
    return [[int(pid) for pid in found.split()] for found in re.findall(r": pid ((?:\d+ ?)+)", run.stderr + run.stdout)]


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def rows(folder):
    try:
        return max(0, pathlib.Path(folder, "metrics.csv").read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def tensors(folder):
    """The bytes of each tensor of the newest checkpoint, whichever ranks wrote its parts."""
    newest = sorted(pathlib.Path(folder, "checkpoints").glob("step-*"))[-1]
    parts = {}
    for shard in newest.glob("*.safetensors"):
        raw = shard.read_bytes()
        size, = struct.unpack("<Q", raw[:8])
        head = json.loads(raw[8:8 + size])
        places = json.loads(head.pop("__metadata__")["DCP_SHARDING_INFO"])
        for name, what in head.items():
            begin, end = what["data_offsets"]
            parts.setdefault(name, []).append((places[name]["saved_offsets"], raw[8 + size + begin:8 + size + end]))
    return newest.name, {name: b"".join(bytes_ for _, bytes_ in sorted(found)) for name, found in parts.items()}


def ended(run, code=0, seconds=240):
    got = run.wait(seconds)
    run.check(got == code, f"exit code {got}, not {code}")
    left = run.left_behind()
    run.check(not left, f"left behind: {left}")

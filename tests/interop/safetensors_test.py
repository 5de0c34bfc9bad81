#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""Our safetensors files and checkpoints are read by the safetensors package, and its files by us."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, skip  # noqa: E402

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs it")


def check_ours(path):
    with safetensors.safe_open(path, framework="numpy") as f:
        assert sorted(f.keys()) == ["count", "half", "matrix", "none", "raw", "scalar"], f.keys()
        assert f.metadata()["format"] == "pt"
        matrix = f.get_tensor("matrix")
        assert matrix.dtype == numpy.float32 and matrix.tolist() == [[0, 0.5, 1], [1.5, 2, 2.5]], matrix
        assert f.get_tensor("scalar").shape == () and f.get_tensor("scalar") == 0
        assert f.get_tensor("raw").tolist() == [1, 2, 3]
        assert f.get_tensor("count").dtype == numpy.int64 and f.get_tensor("count").tolist() == [120]
        assert f.get_tensor("none").shape == (0, 4)
        assert f.get_slice("half").get_dtype() == "BF16" and f.get_slice("half").get_shape() == [2]


def check_rows(checkpoint):
    """As torch.distributed.checkpoint's HuggingFaceStorageReader puts a tensor together from the files of a folder."""
    whole, chunks = {}, {}
    for path in sorted(pathlib.Path(checkpoint).glob("*.safetensors")):
        with safetensors.safe_open(path, framework="numpy") as f:
            saved = json.loads(f.metadata()["DCP_SHARDING_INFO"])
            for name in f.keys():
                part, at = f.get_tensor(name), saved[name]["saved_offsets"]
                chunks.setdefault(name, []).append((at, part))
                size = [begin + extent for begin, extent in zip(at, part.shape)]
                whole[name] = [max(pair) for pair in zip(whole.get(name, size), size)]
    assert sorted(map(len, chunks.values())) == [1, 1, 1, 2, 2, 2], chunks
    for name, shape in whole.items():
        found = numpy.full(shape, -1, dtype=numpy.float32)
        for at, part in chunks[name]:
            found[tuple(slice(b, b + n) for b, n in zip(at, part.shape))] = part
        assert (found == numpy.arange(found.size, dtype=numpy.float32).reshape(shape) / 2).all(), (name, found)
    assert whole["model.w"] == [7, 3] and whole["model.scale"] == [], whole


def main():
    program = find_program("skein_interop_files")
    with tempfile.TemporaryDirectory(prefix="skein-interop-") as folder:
        subprocess.run([program, "write", folder], check=True)
        check_ours(os.path.join(folder, "model.safetensors"))
        checkpoint = os.path.join(folder, "run", "checkpoints", "step-00000120")
        check_ours(os.path.join(checkpoint, "shard-0-of-1.safetensors"))
        with open(os.path.join(checkpoint, "manifest.json"), encoding="utf-8") as f:
            assert json.load(f)["step"] == 120
        rows = os.path.join(folder, "rows")
        subprocess.run([program, "shard", rows], check=True)
        check_rows(os.path.join(rows, "step-00000120"))

        # The other way: what the reference writer makes, byte for byte.
        theirs = {"a": numpy.arange(12, dtype=numpy.float64).reshape(3, 4), "b/\u00fc \"q\"": numpy.array([1, -2], dtype=numpy.int16),
                  "empty": numpy.zeros((2, 0), dtype=numpy.float32), "flag": numpy.array([True, False])}
        path = os.path.join(folder, "theirs.safetensors")
        safetensors.numpy.save_file(theirs, path, metadata={"k": "v"})
        out = subprocess.run([program, "read", path], check=True, capture_output=True, text=True).stdout
        seen = {t["name"]: t for t in map(json.loads, out.splitlines())}
        assert set(seen) == set(theirs), seen
        for name, array in theirs.items():
            assert seen[name]["shape"] == list(array.shape), (name, seen[name])
            assert bytes.fromhex(seen[name]["bytes"]) == array.tobytes(), name
        assert seen["a"]["dtype"] == "F64" and seen["flag"]["dtype"] == "BOOL"

        # A file that the reference refuses is refused by us too.
        with open(path, "rb") as f:
            whole = f.read()
        broken = os.path.join(folder, "broken.safetensors")
        for bad in (whole[:-1], whole + b"x", whole[:20]):
            with open(broken, "wb") as f:
                f.write(bad)
            try:
                safetensors.numpy.load_file(broken)
                raise AssertionError("the reference accepts it")
            except safetensors.SafetensorError:
                pass
            assert subprocess.run([program, "read", broken], capture_output=True, check=False).returncode == 1
    print(f"read by safetensors {safetensors.__version__} and back")


main()

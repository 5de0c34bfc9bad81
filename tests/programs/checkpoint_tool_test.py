#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skein checkpoint show, verify, diff, export and average: of runs that a training made, and of files that are damaged.

    checkpoint_tool_test.py [WORD]     WORD: only the cases with it in their name

Whatever is wrong with a file, the tool says it in one line with its name and ends with 1 or 2: never with a signal.
"""
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, environment, find_program, run_cases, write_text  # noqa: E402

STEPS, EVERY = 12, 4
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}


def tool(*arguments, code=0, **more):
    """What it printed, on both."""
    done = subprocess.run([find_program("skein"), "checkpoint", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, env=environment(SKEIN_LOG_LEVEL="warn", **more), check=False)
    assert done.returncode == code, f"{arguments}: {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def refused(*arguments, says=(), code=1):
    """One line that says it; nothing else."""
    out, err = tool(*arguments, code=code)
    said = (out + err).strip()
    lines = [line for line in said.splitlines() if " W weights " not in line]
    assert len(lines) == 1 and len(said) < 2000, f"{arguments}: not one line\n{said}"
    for words in says:
        assert words in said, f"{arguments}: no '{words}' in {said}"
    return said


def header_of(path):
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def values_of(path, name):
    head, data = header_of(path)
    begin, end = head[name]["data_offsets"]
    assert head[name]["dtype"] == "F32"
    return struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])


def write_weights(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    head, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    write_raw(path, json.dumps(head).encode(), data)


def write_raw(path, header, data=b""):
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def floats(*values):
    return ("F32", [len(values)], struct.pack(f"<{len(values)}f", *values))


def flip(path, at, bit=4):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


class Trained:
    """Runs of example 120, trained once; a case works on a copy."""

    def __init__(self, folder):
        self.folder = folder
        self.text = write_text(folder)
        self.made = {}

    def run(self, strategy, seed=1):
        key = f"{strategy} {seed}"
        if key not in self.made:
            name = f"made-{strategy}-{seed}"
            with Run([find_program("120_gpt_fsdp"), *TINY, "--layers", 2, "--text", self.text, "--runs", self.folder, "--run", name, "--strategy",
                      strategy, "--workers", 2, "--steps", STEPS, "--checkpoint-every", EVERY, "--seed", seed]) as run:
                run.check(run.wait() == 0, "the training failed")
            self.made[key] = self.folder / name
        return self.made[key]

    def copy(self, strategy="fsdp", seed=1):
        into = self.folder / f"copy-{time.monotonic_ns()}"
        shutil.copytree(self.run(strategy, seed), into)
        return into


def checkpoints_of(run):
    return sorted((run / "checkpoints").iterdir())


def main():
    with tempfile.TemporaryDirectory(prefix="skein-tool-") as name:
        folder = pathlib.Path(name)
        trained = Trained(folder)

        def it_shows_what_is_there():
            run = trained.run("fsdp")
            newest = checkpoints_of(run)[-1]
            out, err = tool("show", run)
            assert err == "", err
            for words in (f"{newest}: a checkpoint", f"step        {STEPS}", "world       2 ranks", "strategy    FSDP", "metrics     loss ", ", val_loss ",
                          "shards      2 files"):
                assert words in out, f"no '{words}'\n{out}"
            assert not any(line != line.rstrip() for line in out.splitlines()), "spaces at the end of a line"
            said = json.loads(tool("show", run, "--json")[0])
            manifest = json.loads((newest / "manifest.json").read_text())
            assert said["step"] == STEPS and said["world_size"] == 2 and said["metrics"] == manifest["metrics"]
            assert said["tensors"].keys() == manifest["tensors"].keys()
            for tensor, one in manifest["tensors"].items():
                shown = said["tensors"][tensor]
                assert shown["dtype"] == one["dtype"] and shown["shape"] == one["shape"] and shown["parts"] == one["parts"]
                elements = 1
                for extent in one["shape"]:
                    elements *= extent
                assert shown["bytes"] == elements * SIZES[one["dtype"]]
            weights = sum(t["bytes"] for n, t in said["tensors"].items() if n.startswith("model."))
            assert said["totals"]["weights"]["bytes"] == weights and said["totals"]["optimizer"]["tensors"] > 0
            # By whatever name it is given, and in any language.
            for given in (run / "checkpoints", newest, f"{newest}/"):
                assert tool("show", given, LC_ALL="de_DE.UTF-8")[0] == out
            columns = {line.index(" F32 ") for line in out.splitlines() if " F32 " in line}
            assert len(columns) == 1, f"types are not in one column: {columns}"

        def it_shows_files_of_others():
            path = folder / "one.safetensors"
            write_weights(path, {"b": floats(1, 2), "a\x1b[31m": floats(3)})
            out, _ = tool("show", path)
            assert "a safetensors file" in out and "\x1b" not in out and "F32" in out
            assert json.loads(tool("show", path, "--json")[0])["totals"]["weights"] == {"tensors": 2, "elements": 3, "bytes": 12}
            assert "no checksums" in tool("verify", path)[0]

        def every_damaged_chunk_is_named():
            run = trained.copy()
            whole = tool("verify", run)[0].splitlines()
            assert len(whole) == len(checkpoints_of(run)) >= 2 and all(": whole; 2 shards, " in line for line in whole), whole
            newest = checkpoints_of(run)[-1]
            manifest = json.loads((newest / "manifest.json").read_text())
            drawn = random.Random(7)
            for shard in manifest["shards"]:
                path = newest / shard["name"]
                for _ in range(3):
                    at = drawn.randrange(shard["bytes"])
                    flip(path, at)
                    chunk = at // manifest["chunk_bytes"]
                    out, _ = tool("verify", newest, code=1)
                    assert f"{path}: chunk {chunk} (bytes " in out and "damaged, in 1 place" in out, out
                    said = json.loads(tool("verify", run, "--json", code=1)[0])
                    assert not said["whole"]
                    assert said["checked"][-1]["damage"][0]["file"] == str(path) and said["checked"][-1]["damage"][0]["chunk"] == chunk
                    assert all(one["whole"] for one in said["checked"][:-1])
                    flip(path, at)
            assert tool("verify", run)[0].splitlines() == whole

        def every_byte_of_a_manifest_counts():
            newest = checkpoints_of(trained.copy())[-1]
            path = newest / "manifest.json"
            size = path.stat().st_size
            for at in [*range(0, size, max(1, size // 60)), size - 1, size - 2]:
                flip(path, at)
                out, _ = tool("verify", newest, code=1)
                assert "manifest.json: the manifest is cut off or its checksum does not fit" in out, out
                refused("show", newest, says=["manifest"])
                flip(path, at)
            for keep in (0, 1, size // 2, size - 1):
                data = path.read_bytes()
                path.write_bytes(data[:keep])
                refused("show", newest)
                tool("verify", newest, code=1)
                path.write_bytes(data)
            tool("verify", newest)

        def shards_that_are_short_gone_or_of_another_step():
            run = trained.copy()
            before, newest = checkpoints_of(run)[-2:]
            shard = newest / "shard-1-of-2.safetensors"
            data = shard.read_bytes()

            def damaged(words):
                assert words in tool("verify", newest, code=1)[0]
                refused("export", newest, folder / "never", says=[shard.name])
                assert not (folder / "never").exists()
                # A run goes on with the one before it, and says so.
                out, err = tool("export", run, folder / "earlier")
                assert out and "is passed over" in err, err
                shutil.rmtree(folder / "earlier")

            for keep in (0, 7, 100, len(data) - 1):
                shard.write_bytes(data[:keep])
                damaged("truncated")
            shard.write_bytes(data + b"\0")
            damaged("too long")
            shard.write_bytes((before / shard.name).read_bytes())
            damaged("chunk ")
            shard.unlink()
            damaged(shard.name)
            shard.mkdir()
            damaged(shard.name)
            shard.rmdir()
            shard.write_bytes(data)
            assert tool("verify", newest)[0]
            moved = newest.with_name("step-00000099")
            newest.rename(moved)
            assert f"the manifest is of step {STEPS}" in tool("verify", moved, code=1)[0]

        def headers_that_lie_are_refused():
            path = folder / "lies.safetensors"

            def lies(header, data, *words):
                write_raw(path, header if isinstance(header, bytes) else json.dumps(header).encode(), data)
                for how in ("show", "verify"):
                    if how == "show":
                        refused(how, path, says=[path.name, *words])
                    else:
                        out, _ = tool(how, path, code=1)
                        assert all(w in out for w in words), out
                refused("diff", path, path, code=2)
                refused("export", path, folder / "never")
                assert not (folder / "never").exists()

            def one(begin, end, shape=None):
                return {"dtype": "U8", "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}

            lies({"a": one(0, 4), "b": one(6, 8)}, bytes(8), "hole")
            lies({"a": one(0, 4), "b": one(2, 8)}, bytes(8), "overlap")
            lies({"a": one(0, 8)}, bytes(7), "truncated")
            lies({"a": one(0, 8)}, bytes(9), "left over")
            lies({"a": one(0, 8, [1 << 62, 1 << 62])}, bytes(8), "2^63")
            lies({"a": one(0, 8, [-8])}, bytes(8))
            lies({"a": {"dtype": "F1", "shape": [8], "data_offsets": [0, 8]}}, bytes(8), "F1")
            lies({"n" * 5000: one(0, 8)}, bytes(8), "5000 characters")
            lies(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}', bytes(2), "twice")
            lies(b"[" * 1000, b"")
            lies(b"\xff\xfe", b"")
            lies(b"", b"12345678")
            write_weights(path, {"a": floats(1, 2, 3)})
            data = path.read_bytes()
            for keep in range(0, len(data)):
                path.write_bytes(data[:keep])
                refused("show", path)
            path.write_bytes(struct.pack("<Q", 100_000_001) + b"{}")
            refused("show", path, says=["100000001"])
            path.write_bytes(struct.pack("<Q", (1 << 64) - 1) + b"{}")
            refused("show", path)
            # A header of 100 MB that is there: a hundred thousand tensors of no bytes, and spaces.
            many = json.dumps({f"t{i}": one(0, 0) for i in range(100_000)}).encode()
            write_raw(path, many.ljust(100_000_000))
            begin = time.monotonic()
            assert len(tool("show", path)[0].splitlines()) > 100_000
            print(f"        a header of 100 MB: {time.monotonic() - begin:.1f} s", flush=True)
            path.unlink()

        def an_index_stays_in_its_folder():
            hub = folder / "hub"
            hub.mkdir()
            write_weights(folder / "outside.safetensors", {"a": floats(1)})
            write_weights(hub / "m-1.safetensors", {"a": floats(1), "b": floats(2)})

            def index(weight_map, *words):
                text = weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map})
                (hub / "model.safetensors.index.json").write_text(text)
                return refused("show", hub, says=words) if words else tool("show", hub)[0]

            assert "a folder of Hugging Face's" in index({"a": "m-1.safetensors", "b": "m-1.safetensors"})
            for place in ("../outside.safetensors", str(folder / "outside.safetensors"), "sub/x.safetensors", "..", ""):
                index({"a": place}, "no safetensors file of this folder")
            index({"a": "m-1.safetensors"}, "tensor 'b'", "in no file by the index")
            index({"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-1.safetensors"}, "tensor 'c'")
            index({"a": "m-2.safetensors"}, "m-2.safetensors")
            index({str(i): f"{i}.safetensors" for i in range(1001)}, "1001 files")
            index('{"weight_map": {"a": "m-1.safetensors", "a": "m-1.safetensors"}}', "twice")
            index("{", "not JSON")
            index("[]", "weight_map")

        def differences_are_counted():
            a, b = trained.copy(), trained.copy()
            assert "are equal" in tool("diff", a, b)[0]
            first, last = checkpoints_of(a)[-2:]
            said = json.loads(tool("diff", first, last, "--json", code=1)[0])
            assert any(name.startswith("optim.") for name in said["different"])
            weights = json.loads(tool("diff", first, last, "--weights", "--json", code=1)[0])
            assert weights["different"] and not any(name.startswith(("optim.", "model.")) for name in weights["different"])
            one, two = folder / "d1.safetensors", folder / "d2.safetensors"
            write_weights(one, {"same": floats(1, 2), "value": floats(1, 2, 3), "shape": floats(1, 2), "mine": floats(1)})
            write_weights(two, {"same": floats(1, 2), "value": floats(1, 2.5, 1), "shape": floats(1, 2, 3), "yours": floats(1)})
            out, _ = tool("diff", one, two, code=1)
            for words in ("value   2 of 3 elements differ, by at most 2\n", "shape   F32 [2] and F32 [3]\n", f"mine    F32 [1] in {one} alone\n",
                          f"yours   F32 [1] in {two} alone\n", "4 of 5 tensors differ"):
                assert words in out, f"no '{words}'\n{out}"
            said = json.loads(tool("diff", one, two, "--json", code=1)[0])
            assert said["equal"] == 1 and said["different"]["value"]["differ"] == 2 and said["different"]["value"]["largest"] == 2.0
            refused("diff", one, folder / "nothing", code=2, says=["nothing"])

        def weights_are_given_on():
            run = trained.run("fsdp")
            newest = checkpoints_of(run)[-1]
            out, _ = tool("export", run, folder / "out")
            assert "in 1 file" in out
            manifest = json.loads((newest / "manifest.json").read_text())
            head, _ = header_of(folder / "out/model.safetensors")
            wanted = {n.removeprefix("model.") for n in manifest["tensors"] if n.startswith("model.")}
            assert head.keys() - {"__metadata__"} == wanted
            for tensor in wanted:   # rows of both shards, one behind the other
                rows = []
                for part in manifest["tensors"]["model." + tensor]["parts"]:
                    rows += values_of(newest / manifest["shards"][part["shard"]]["name"], "model." + tensor)
                assert tuple(rows) == values_of(folder / "out/model.safetensors", tensor), tensor
            assert "equal" in tool("diff", run, folder / "out")[0]
            tool("export", run, folder / "many", "--max-shard", "10kB")
            index = json.loads((folder / "many/model.safetensors.index.json").read_text())
            assert index["weight_map"].keys() == wanted and len(set(index["weight_map"].values())) > 2
            assert index["metadata"]["total_size"] == sum(t["data_offsets"][1] - t["data_offsets"][0] for n, t in head.items() if n in wanted)
            assert "equal" in tool("diff", folder / "many", folder / "out")[0]
            tool("export", folder / "many", folder / "half", "--dtype", "bf16")
            head, _ = header_of(folder / "half/model.safetensors")
            assert {t["dtype"] for n, t in head.items() if n in wanted} == {"BF16"}
            refused("export", run, folder / "out", says=["is there already"])
            refused("export", run, folder / "x", "--max-shard", "many", code=2)
            refused("export", run, folder / "x", "--max-shard", "0", code=2)
            refused("export", run, folder / "x", "--dtype", "f8", code=2)
            refused("export", run, folder / "x", "--averages", says=["averages"])
            assert not (folder / "x").exists() and not list(folder.glob("*.part*"))

        def means_are_means():
            paths = [folder / f"m{i}.safetensors" for i in range(3)]
            for i, path in enumerate(paths):
                write_weights(path, {"w": floats(i, 10 * i, -0.5), "n": ("I64", [1], struct.pack("<q", i))})
            out, _ = tool("average", *paths, "--out", folder / "mean")
            assert out.startswith("the mean of 3\n")
            assert values_of(folder / "mean/model.safetensors", "w") == (1.0, 10.0, -0.5)
            head, data = header_of(folder / "mean/model.safetensors")
            assert struct.unpack("<q", data[slice(*head["n"]["data_offsets"])]) == (2,)
            a, b = trained.run("fsdp"), trained.run("ddp", 2)
            tool("average", a, b, "--out", folder / "both")
            one, two = folder / "one-of-two", folder / "two-of-two"
            tool("export", a, one)
            tool("export", b, two)
            for tensor in header_of(one / "model.safetensors")[0].keys() - {"__metadata__"}:
                pairs = zip(values_of(one / "model.safetensors", tensor), values_of(two / "model.safetensors", tensor), strict=True)
                mean = [struct.unpack("<f", struct.pack("<f", (x + y) / 2))[0] for x, y in pairs]
                assert mean == list(values_of(folder / "both/model.safetensors", tensor)), tensor
            write_weights(folder / "other.safetensors", {"w": floats(1), "v": floats(1)})
            said = refused("average", paths[0], folder / "other.safetensors", "--out", folder / "x")
            for words in ("w is F32 [3] in ", "v is not there in ", "n is I64 [1] in "):
                assert words in said, said
            refused("average", paths[0], "--out", folder / "x", code=2)
            refused("average", *paths, code=2, says=["--out"])

        def wrong_command_lines_are_said():
            refused("show", folder / "nothing", says=["there is no checkpoint in"])
            refused("verify", folder / "nothing", says=["there is no checkpoint in"])
            refused("show", folder, says=["there is no checkpoint in"])
            refused("show", "", code=2)
            refused("show", code=2)
            refused(code=2)
            refused("show", folder, "--what", code=2, says=["--json"])
            refused("forget", folder, code=2)
            refused("show", f"hf:{folder}", says=["model.safetensors"])
            assert "show" in tool("--help")[0]

        run_cases([("it shows what is there", it_shows_what_is_there), ("it shows files of others", it_shows_files_of_others),
                   ("every damaged chunk is named", every_damaged_chunk_is_named), ("every byte of a manifest counts", every_byte_of_a_manifest_counts),
                   ("shards that are short, gone or of another step", shards_that_are_short_gone_or_of_another_step),
                   ("headers that lie are refused", headers_that_lie_are_refused), ("an index stays in its folder", an_index_stays_in_its_folder),
                   ("differences are counted", differences_are_counted), ("weights are given on", weights_are_given_on),
                   ("means are means", means_are_means), ("wrong command lines are said", wrong_command_lines_are_said)],
                  sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

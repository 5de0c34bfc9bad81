#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose tensors are rows in several shards, read by torch.distributed.checkpoint, and folders of its own, read by us.

    torch_dcp_test.py [WORD] [--all]     cases with that word; every strategy, optimizer and number of ranks

PyTorch takes weights and the optimizer's state from our step 10 and makes ten further steps, whose losses are ours. The vocabulary of
257 divides by no number of ranks here. What DCP's Hugging Face writer and save_pretrained() write comes back on one rank and on three.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from gpt2_pair import BOUND, is_turned, make_model, our_losses, require_near, tokens, train   # first: it knows whether there is a PyTorch
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from program import DEADLINE, Run, find_program, run_cases
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

SHAPES = {"model.w": (7, 3), "model.bias": (11,), "model.scale": (), "model.cube": (2, 3, 4), "model.norm": (6, 2),
          "optim.steps": ()}
BEFORE, AFTER = 10, 20
STATES = {"adamw": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}, "sgd": {"momentum": "momentum_buffer"}}   # ours: torch.optim's
USUAL = [("fsdp", "sgd", 2), ("fsdp", "adamw", 3), ("hybrid", "adamw", 2), ("hybrid", "sgd", 3)]
ALL = [(strategy, optimizer, ranks) for strategy in ("fsdp", "hybrid") for optimizer in STATES for ranks in (2, 3)]


def rows_in_shards():
    program = find_program("skein_interop_files")
    with tempfile.TemporaryDirectory(prefix="skein-interop-") as folder:
        subprocess.run([program, "shard", folder], check=True)
        checkpoint = str(pathlib.Path(folder) / "step-00000120")
        seen = HuggingFaceStorageReader(checkpoint).read_metadata().state_dict_metadata
        assert {name: tuple(of.size) for name, of in seen.items()} == SHAPES, seen
        state = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(checkpoint), no_dist=True)
        for name, shape in SHAPES.items():
            wanted = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) / 2
            assert torch.equal(state[name], wanted), (name, state[name])


def run_ours(scratch, folder, **options):
    """Trains on from what a folder has; the checkpoints' folder."""
    words = [word for name, value in options.items() for word in ("--" + name, value)]
    with Run([find_program("skein_round_trip"), folder, "--runs", scratch / "runs", *words]) as run:
        run.check(run.wait() == 0, "the program failed")
        run.check_nothing_left()
    return scratch / "runs/round_trip/checkpoints"


def read(model, checkpoint, kinds):
    """Per parameter of a GPT-2 of transformers what a checkpoint of ours has, by kind, and the number of steps."""
    parameters = dict(model.named_parameters())
    reader = HuggingFaceStorageReader(str(checkpoint))
    state = {}
    for name, p in parameters.items():
        for kind in kinds:
            state[kind + name.removeprefix("transformer.")] = torch.full(p.t().shape if is_turned(model, name) else p.shape, torch.nan)
    saved = reader.read_metadata().state_dict_metadata
    assert state.keys() == saved.keys(), state.keys() ^ saved.keys()
    dcp.load(state, storage_reader=reader, no_dist=True)
    steps = json.loads((checkpoint / "manifest.json").read_text())["extra"]["optimizer"]["steps"]
    found = {}
    for name in parameters:
        of = [state[kind + name.removeprefix("transformer.")] for kind in kinds]
        found[name] = [t.t().contiguous() if is_turned(model, name) else t for t in of]
    return found, steps


def resume_from(model, optimizer, kind, checkpoint):
    found, steps = read(model, checkpoint, ["model.", *(f"optim.{ours}." for ours in STATES[kind])])
    with torch.no_grad():
        for name, p in model.named_parameters():
            weight, *states = found[name]
            p.copy_(weight)
            optimizer.state[p] = dict(zip(STATES[kind].values(), states, strict=True))
            if kind == "adamw":
                optimizer.state[p]["step"] = torch.tensor(float(steps))
    return steps


def make_optimizer(model, kind):
    """Those of skein_round_trip: vectors are not decayed."""
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3) if kind == "adamw" else torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def goes_on(strategy, kind, ranks):
    def case():
        with tempfile.TemporaryDirectory(prefix="skein-dcp-") as name:
            scratch = pathlib.Path(name)
            model = make_model()
            model.save_pretrained(scratch / "given")
            checkpoints = run_ours(scratch, scratch / "given", strategy=strategy, optimizer=kind, workers=ranks, steps=AFTER,
                                   rate=1e-3 if kind == "adamw" else 0.05)
            ours = our_losses(scratch)
            saved = checkpoints / f"step-{BEFORE:08}"
            shards = json.loads((saved / "manifest.json").read_text())["tensors"]["model.wte.weight"]["parts"]
            assert len(shards) == ranks, shards   # each rank has rows, and not equally many of 257
            apart = require_near([ours[s] for s in range(1, BEFORE + 1)], train(model, make_optimizer(model, kind), BEFORE), "the same ten steps")
            other = make_model(seed=2)   # nothing of it is left
            optimizer = make_optimizer(other, kind)
            assert resume_from(other, optimizer, kind, saved) == BEFORE
            losses = train(other, optimizer, AFTER - BEFORE)
            further = require_near([ours[s] for s in range(BEFORE + 1, AFTER + 1)], losses, "ten further steps")
            print(f"        losses {ours[1]:.4f} to {ours[AFTER]:.4f}: ten steps at most {apart:.1e} apart, ten from the checkpoint {further:.1e}")
    return f"PyTorch goes on from {strategy} with {kind} on {ranks} ranks", case


def folders_come_back():
    with tempfile.TemporaryDirectory(prefix="skein-dcp-") as name:
        scratch = pathlib.Path(name)
        model = make_model(seed=3)
        state = {key: value.clone() for key, value in model.state_dict().items()}   # DCP refuses a tied tensor: the head is there twice
        in_files = {key: 1 + i % 3 for i, key in enumerate(state)}
        writers = {"one file": {}, "three files": {"fqn_to_index_mapping": in_files},
                   "put together": {"fqn_to_index_mapping": in_files, "save_distributed": True, "enable_consolidation": True}}
        for folder, how in writers.items():
            dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(scratch / folder), **how), no_dist=True)
        safetensors.torch.save_file(state, scratch / "state.safetensors")
        ranks = [subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("dcp_rank.py"), scratch / "state.safetensors",
                                   scratch / "rows of ranks", str(rank), "2"]) for rank in range(2)]
        assert [rank.wait(DEADLINE) for rank in ranks] == [0, 0]
        names = [path.name for path in (scratch / "rows of ranks").iterdir()]
        assert sum(name.endswith(".safetensors") for name in names) == 2, names
        model.save_pretrained(scratch / "pretrained", max_shard_size="60KB")
        (scratch / "pretrained/model.safetensors.index.json").stat()
        loss = torch.nn.functional.cross_entropy(model(tokens()[0]).logits.flatten(0, 1), tokens()[1].flatten()).item()
        for folder in (*writers, "rows of ranks", "pretrained"):
            (scratch / folder / "config.json").write_text((scratch / "pretrained/config.json").read_text())
            for ranks in (1, 3):
                there = scratch / f"{folder} on {ranks}"
                there.mkdir()
                saved = run_ours(there, scratch / folder, workers=ranks, steps=1, rate=0) / "step-00000001"
                found, _ = read(model, saved, ["model.", "optim.exp_avg.", "optim.exp_avg_sq."])
                differ = [n for n, p in model.named_parameters() if not torch.equal(found[n][0], p)]
                assert not differ, f"{folder}, {ranks} ranks: {differ}"
                assert abs(our_losses(there)[1] - loss) <= BOUND, f"{folder}, {ranks} ranks: loss {our_losses(there)[1]}, not {loss}"


words = [word for word in sys.argv[1:] if word != "--all"]
combinations = ALL if "--all" in sys.argv else USUAL
run_cases([("DCP puts together rows that lie in several shards", rows_in_shards),
           *(goes_on(*how) for how in combinations),
           ("folders of DCP's Hugging Face writer and of save_pretrained come back on 1 and 3 ranks", folders_come_back)],
          only=words[0] if words else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 that transformers has saved is read, trained on under FSDP and given back: PyTorch goes on from our checkpoint.

Equal weights give equal answers; and five steps that PyTorch makes from our sharded checkpoint, weights and moments, have the
losses of our own continuation. Everything is made from a config; nothing is fetched.
"""
import json
import pathlib
import sys
import tempfile

from gpt2_pair import BOUND, is_turned, make_model, our_losses, require_near, tokens, train   # first: it knows whether there is a PyTorch
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from program import Run, find_program, run_cases
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import GPT2LMHeadModel

BEFORE, AFTER = 10, 15


def run_ours(folder, *arguments):
    with Run([find_program("150_pytorch_round_trip"), folder, *arguments]) as run:
        run.check(run.wait() == 0, "the program failed")
        run.check_nothing_left()
        return run.stdout


def our_logits(folder, scratch):
    run_ours(folder, "--logits", scratch / "logits.safetensors")
    return safetensors.torch.load_file(scratch / "logits.safetensors")["logits"]


def their_logits(model):
    with torch.no_grad():
        return model.eval()(tokens()[0]).logits


# [resume]
def resume_from(model, optimizer, checkpoint):
    """Weights, moments and step of a checkpoint of skein, for a GPT-2 of transformers and torch.optim.AdamW."""
    parameters = dict(model.named_parameters())
    reader = HuggingFaceStorageReader(checkpoint)
    saved = reader.read_metadata().state_dict_metadata
    state = {}
    for name, p in parameters.items():
        shape = p.t().shape if is_turned(model, name) else p.shape
        for kind in ("model.", "optim.exp_avg.", "optim.exp_avg_sq."):
            state[kind + name.removeprefix("transformer.")] = torch.empty(shape)   # DCP fills what is there, and nothing else
    assert state.keys() == saved.keys(), state.keys() ^ saved.keys()
    dcp.load(state, storage_reader=reader, no_dist=True)
    step = json.loads((pathlib.Path(checkpoint) / "manifest.json").read_text())["extra"]["optimizer"]["steps"]
    with torch.no_grad():
        for name, p in parameters.items():
            weight, mean, square = (state[kind + name.removeprefix("transformer.")] for kind in ("model.", "optim.exp_avg.", "optim.exp_avg_sq."))
            if is_turned(model, name):
                weight, mean, square = weight.t(), mean.t(), square.t()
            p.copy_(weight)
            optimizer.state[p] = {"step": torch.tensor(float(step)), "exp_avg": mean.contiguous(), "exp_avg_sq": square.contiguous()}
    return step
# [/resume]


def make_optimizer(model):
    """skein::AdamW{.weight_decay = 0.1}: vectors are not decayed."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3)


def logits_are_equal():
    with tempfile.TemporaryDirectory(prefix="skein-weights-") as name:
        scratch = pathlib.Path(name)
        model = make_model()
        assert torch.equal(model.lm_head.weight, model.transformer.wte.weight)
        wanted = their_logits(model)
        for how, options in (("one file", {}), ("shards", {"max_shard_size": "40KB"})):
            model.save_pretrained(scratch / how, **options)
            assert (scratch / how / "model.safetensors.index.json").exists() == (how == "shards")
            apart = (our_logits(scratch / how, scratch) - wanted).abs().max().item()
            assert apart <= BOUND, f"{how}: logits are {apart} apart"
            print(f"        {how}: logits at most {apart:.1e} apart")
        model.transformer.save_pretrained(scratch / "without head")   # names without their beginning
        assert (our_logits(scratch / "without head", scratch) - wanted).abs().max().item() <= BOUND
        model.to(torch.bfloat16).save_pretrained(scratch / "half")
        again = GPT2LMHeadModel.from_pretrained(scratch / "half", dtype=torch.float32)
        assert (our_logits(scratch / "half", scratch) - their_logits(again)).abs().max().item() <= BOUND


def pytorch_goes_on():
    with tempfile.TemporaryDirectory(prefix="skein-weights-") as name:
        scratch = pathlib.Path(name)
        model = make_model()
        model.save_pretrained(scratch / "given")
        runs = ["--workers", 2, "--runs", scratch / "runs"]
        run_ours(scratch / "given", *runs, "--steps", BEFORE)
        checkpoint = scratch / f"runs/round_trip/checkpoints/step-{BEFORE:08}"
        assert len(list(checkpoint.glob("shard-*-of-2.safetensors"))) == 2

        torch_alone = train(model, make_optimizer(model), BEFORE)
        first = our_losses(scratch)
        apart = require_near([first[s] for s in range(1, BEFORE + 1)], torch_alone, "the same ten steps")

        other = make_model(seed=2)   # nothing of it is left
        optimizer = make_optimizer(other)
        assert resume_from(other, optimizer, str(checkpoint)) == BEFORE
        run_ours(scratch / "given", *runs, "--steps", AFTER, "--resume")
        ours = our_losses(scratch)
        further = require_near([ours[s] for s in range(BEFORE + 1, AFTER + 1)], train(other, optimizer, AFTER - BEFORE), "five further steps")
        run_ours(scratch / "given", "--runs", scratch / "runs", "--export", scratch / "trained")
        back = GPT2LMHeadModel.from_pretrained(scratch / "trained").state_dict()
        assert resume_from(model, make_optimizer(model), str(checkpoint.with_name(f"step-{AFTER:08}"))) == AFTER
        assert back.keys() == model.state_dict().keys()
        assert all(torch.equal(t, back[name]) for name, t in model.state_dict().items()), "from_pretrained has other weights"
        print(f"        losses {ours[1]:.4f} to {ours[AFTER]:.4f}: ten steps at most {apart:.1e} apart, five from the checkpoint {further:.1e}")


def mistakes_are_said():
    with tempfile.TemporaryDirectory(prefix="skein-weights-") as name:
        scratch = pathlib.Path(name)
        make_model().save_pretrained(scratch / "given")
        path = scratch / "given/model.safetensors"
        tensors = safetensors.torch.load_file(path)
        config = scratch / "given/config.json"

        def says(*words):
            with Run([find_program("150_pytorch_round_trip"), scratch / "given", "--workers", 2, "--runs", scratch / "runs"]) as run:
                run.check(run.wait() not in (0, None), "it was taken")
                for word in words:
                    run.check(word in run.stderr, f"no '{word}'")
                run.check_nothing_left()

        safetensors.torch.save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, path)
        says("transformer.wte.weight and lm_head.weight are one tensor", "other values")
        less = {name: t for name, t in tensors.items() if name != "transformer.ln_f.bias"}
        safetensors.torch.save_file({**less, "score.weight": torch.zeros(2), "transformer.wpe.weight": torch.zeros(3, 4)}, path)
        says("1 missing in the folder: transformer.ln_f.bias", "1 that the model has not: score.weight", "transformer.wpe.weight is F32 [3, 4]")
        path.write_bytes(path.read_bytes()[:-1])
        says("truncated")
        config.write_text(config.read_text().replace("gelu_new", "relu"))
        says("not supported: a GPT-2 whose activation_function is")


run_cases([("logits of one file, of shards, of a model without its head and of 16 bits are those of transformers", logits_are_equal),
           ("PyTorch goes on from two shards, weights and moments, as we do, and from_pretrained reads an export", pytorch_goes_on),
           ("what does not fit is said at once, before training", mistakes_are_said)],
          only=sys.argv[1] if len(sys.argv) > 1 else None)

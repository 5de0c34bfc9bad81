#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 that transformers has saved is read, trained on under FSDP and given back: PyTorch goes on from our checkpoint.

Equal weights give equal answers; and five steps that PyTorch makes from our sharded checkpoint, weights and moments, have the
losses of our own continuation. Everything is made from a config; nothing is fetched.
"""
import csv
import json
import os
import pathlib
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import Run, find_program, run_cases, skip  # noqa: E402

try:
    import safetensors.torch
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D
    from transformers.utils.logging import disable_progress_bar
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs transformers and, for Python 3.11 on x86-64, PyTorch")

BOUND = 1e-5
BEFORE, AFTER, SAMPLES = 10, 15, 8
SIZES = {"vocab_size": 257, "n_positions": 24, "n_embd": 32, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}


def make_model(kind=GPT2LMHeadModel, seed=1):
    torch.manual_seed(seed)
    model = kind(GPT2Config(**SIZES))
    with torch.no_grad():   # biases and norms are drawn, too: as they begin they would not tell one from another
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) / 10)
    return model


def tokens():
    """What examples/150_pytorch_round_trip trains on: inputs and targets."""
    i, t = torch.meshgrid(torch.arange(SAMPLES), torch.arange(SIZES["n_positions"] + 1), indexing="ij")
    ids = (31 * i + 7 * t + i * t) % SIZES["vocab_size"]
    return ids[:, :-1], ids[:, 1:]


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


def is_turned(model, name):
    """Whether GPT-2 keeps this weight as [in, out]: its layers are called Conv1D."""
    owner, _, leaf = name.rpartition(".")
    return leaf == "weight" and isinstance(model.get_submodule(owner), Conv1D)


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


def train(model, optimizer, steps):
    inputs, targets = tokens()
    losses = []
    model.train()
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(scratch):
    with open(scratch / "runs/round_trip/metrics.csv", encoding="utf-8", newline="") as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}


def require_near(ours, theirs, what):
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    assert worst <= BOUND, f"{what}: {worst} apart\nours {ours}\ntheirs {theirs}"
    return worst


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


disable_progress_bar()
run_cases([("logits of one file, of shards, of a model without its head and of 16 bits are those of transformers", logits_are_equal),
           ("PyTorch goes on from two shards, weights and moments, as we do, and from_pretrained reads an export", pytorch_goes_on),
           ("what does not fit is said at once, before training", mistakes_are_said)],
          only=sys.argv[1] if len(sys.argv) > 1 else None)

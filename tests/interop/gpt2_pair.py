# SPDX-License-Identifier: Apache-2.0
"""A small GPT-2 of transformers, and what the programs here train it on: for tests that PyTorch takes part in."""
import csv
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import skip  # noqa: E402

try:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D
    from transformers.utils.logging import disable_progress_bar
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs transformers and, for Python 3.11 on x86-64, PyTorch")

BOUND = 1e-5
SAMPLES = 8
SIZES = {"vocab_size": 257, "n_positions": 24, "n_embd": 32, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
disable_progress_bar()


def make_model(kind=GPT2LMHeadModel, seed=1):
    torch.manual_seed(seed)
    model = kind(GPT2Config(**SIZES))
    with torch.no_grad():   # biases and norms are drawn, too: as they begin they would not tell one from another
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) / 10)
    return model


def tokens():
    """What examples/150_pytorch_round_trip and skein_round_trip train on: inputs and targets."""
    i, t = torch.meshgrid(torch.arange(SAMPLES), torch.arange(SIZES["n_positions"] + 1), indexing="ij")
    ids = (31 * i + 7 * t + i * t) % SIZES["vocab_size"]
    return ids[:, :-1], ids[:, 1:]


def is_turned(model, name):
    """Whether GPT-2 keeps this weight as [in, out]: its layers are called Conv1D."""
    owner, _, leaf = name.rpartition(".")
    return leaf == "weight" and isinstance(model.get_submodule(owner), Conv1D)


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

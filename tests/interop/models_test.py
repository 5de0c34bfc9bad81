#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of skein::models are those of torchvision: equal weights give equal logits, both ways, in eval and train mode.

    models_test.py [WORD]     WORD: only the cases with it in their name

Everything is made from code; nothing is fetched.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, run_cases, skip  # noqa: E402

try:
    import safetensors.torch
    import torch
    import torchvision
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs torchvision, transformers and, for Python 3.11 on x86-64, PyTorch")

BOUND = 1e-5
COUNTS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "efficientnet_b0": 5_288_548, "efficientnet_b7": 66_347_960, "vit_b_16": 86_567_656,
          "gpt2": 124_439_808}
SMALL_VIT = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128, "num_classes": 10}
# Name, pixels and samples. Norms need two samples at least, and the pixels that are left in the last stage.
CASES = [("resnet18", 64, 4), ("resnet50", 64, 4), ("efficientnet_b0", 64, 4), ("efficientnet_b7", 64, 2), ("vit_b_16", 224, 1), ("small_vit", 32, 4)]


def make_theirs(name):
    torch.manual_seed(1)
    if name == "small_vit":
        model = torchvision.models.VisionTransformer(**SMALL_VIT)
    elif name.startswith("efficientnet"):
        model = getattr(torchvision.models, name)(dropout=0.0, stochastic_depth_prob=0.0)
    else:
        model = getattr(torchvision.models, name)()
    with torch.no_grad():   # what begins as 0 or 1 would not tell one from another
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) / 20)
        if "vit" in name:
            model.heads.head.weight.normal_(std=0.05)
    return model


def settle(model, images):
    """Running statistics as they are after some steps."""
    if not any(True for _ in model.buffers()):
        return
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(images + torch.randn_like(images) / 10)


def answers(model, images):
    with torch.no_grad():
        out = {"eval": model.eval()(images), "train": model.train()(images)}
    return out | {"buffer." + name: b for name, b in model.named_buffers() if b.is_floating_point()}


def ours(*words):
    done = subprocess.run([find_program("skein_models"), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def compare(name, model, weights, images, scratch, way):
    safetensors.torch.save_file({"images": images}, scratch / "images.safetensors")
    ours("logits", name, weights, scratch / "images.safetensors", scratch / "out.safetensors")
    found, wanted = safetensors.torch.load_file(scratch / "out.safetensors"), answers(model, images)
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    worst = {}
    for key, want in wanted.items():
        assert want.isfinite().all() and want.shape == found[key].shape, key
        apart = (found[key] - want).abs().max().item() / max(1.0, want.abs().max().item())
        kind = key.split(".")[0]
        worst[kind] = max(worst.get(kind, 0.0), apart)
        assert apart <= BOUND, f"{name}, {way}: {key} is {apart} apart"
    assert wanted["eval"].std() > 1e-3, "the logits say nothing"
    print(f"        {way}: " + ", ".join(f"{kind} at most {apart:.1e} apart" for kind, apart in worst.items()), flush=True)


def both_ways(name, pixels, samples):
    def case():
        with tempfile.TemporaryDirectory(prefix="skein-models-") as folder:
            scratch = pathlib.Path(folder)
            torch.manual_seed(2)
            images = torch.randn(samples, 3, pixels, pixels)
            theirs = make_theirs(name)
            settle(theirs, images)
            safetensors.torch.save_file(theirs.state_dict(), scratch / "theirs.safetensors")
            compare(name, theirs, scratch / "theirs.safetensors", images, scratch, "their weights here")
            ours("make", name, scratch / "ours")
            given = safetensors.torch.load_file(scratch / "ours/model.safetensors")
            theirs.load_state_dict(given, strict=True)
            if "vit" in name:   # its last layer begins as 0
                with torch.no_grad():
                    theirs.heads.head.weight.normal_(std=0.05)
            settle(theirs, images)
            safetensors.torch.save_file(theirs.state_dict(), scratch / "settled.safetensors")
            compare(name, theirs, scratch / "settled.safetensors", images, scratch, "our weights there")
    return case


def parameters_are_as_many():
    said = dict(line.split() for line in ours("count").splitlines())
    assert {name: int(count) for name, count in said.items()} == COUNTS, said
    for name, count in COUNTS.items():
        if name == "gpt2":
            with torch.device("meta"):
                model = GPT2LMHeadModel(GPT2Config())
        else:
            with torch.device("meta"):
                model = getattr(torchvision.models, name)()
        assert sum(p.numel() for p in model.parameters()) == count, name


run_cases([("parameters are as many", parameters_are_as_many), *((name, both_ways(name, *sizes)) for name, *sizes in CASES)],
          sys.argv[1] if len(sys.argv) > 1 else None)

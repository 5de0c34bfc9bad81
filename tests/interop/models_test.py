#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of skein::models are those of torchvision and transformers: equal weights give equal logits, both ways, in eval and train mode.

    models_test.py [WORD]     WORD: only the cases with it in their name

Everything is made from code; nothing is fetched.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, run_cases, skip  # noqa: E402

try:
    import safetensors.torch
    import torch
    import torchvision
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs torchvision, transformers and, for Python 3.11 on x86-64, PyTorch")

BOUND = 1e-5
COUNTS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "efficientnet_b0": 5_288_548, "efficientnet_b7": 66_347_960, "vit_b_16": 86_567_656,
          "gpt2": 124_439_808, "llama_2_7b": 6_738_415_616, "llama_3_8b": 8_030_261_248, "tiny_llama": 1_100_048_384,
          "wav2letter": 26_211_290, "wav2letter_of_spectra": 23_304_540}
GPT2 = {"vocab_size": 257, "n_positions": 24, "n_embd": 32, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {"vocab_size": 257, "max_position_embeddings": 24, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
         "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 0}
# The published sizes, as their config.json says them; what is left out is the default.
PUBLISHED = {"gpt2": GPT2Config(), "llama_2_7b": LlamaConfig(max_position_embeddings=4096),
             "llama_3_8b": LlamaConfig(vocab_size=128256, intermediate_size=14336, num_key_value_heads=8),
             "tiny_llama": LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_key_value_heads=4)}
SMALL_VIT = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128, "num_classes": 10}
# Name, pixels and samples of images. Norms need two samples at least, and the pixels that are left in the last stage.
# Of speech: shape of the input.
SPEECH = {"wav2letter": (2, 1, 4000), "wav2letter_of_spectra": (3, 13, 50)}
CASES = [("resnet18", 64, 4), ("resnet50", 64, 4), ("efficientnet_b0", 64, 4), ("efficientnet_b7", 64, 2), ("vit_b_16", 224, 1), ("small_vit", 32, 4)]


class Speech(torch.nn.Module):
    """Wav2Letter by its paper's table, with torchaudio's names; torchaudio 2.11 itself does not load beside this PyTorch.
    Without a ReLU behind the last layer where the input is spectra."""

    def __init__(self, name):
        super().__init__()
        waves = name == "wav2letter"
        table = [(250 if waves else 13, 250, 48, 2, 23), *[(250, 250, 7, 1, 3)] * 7, (250, 2000, 32, 1, 16), (2000, 2000, 1, 1, 0), (2000, 40, 1, 1, 0)]
        stack = [layer for row in table for layer in (torch.nn.Conv1d(*row), torch.nn.ReLU())]
        if not waves:
            stack.pop()
        first = torch.nn.Sequential(torch.nn.Conv1d(1, 250, 250, 160, 45), torch.nn.ReLU())
        rest = torch.nn.Sequential(*stack)
        self.acoustic_model = torch.nn.Sequential(first, rest) if waves else rest

    def forward(self, x):
        return torch.nn.functional.log_softmax(self.acoustic_model(x), dim=1)


def make_theirs(name):
    torch.manual_seed(1)
    if name in SPEECH:
        return Speech(name)
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
    if hasattr(model, "config"):   # a language model: its logits; its buffers are no state
        return {mode: said.logits for mode, said in out.items()}
    return out | {"buffer." + name: b for name, b in model.named_buffers() if b.is_floating_point()}


def ours(*words):
    done = subprocess.run([find_program("skein_models"), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def compare(name, model, weights, given, scratch, way):
    safetensors.torch.save_file({"input": given}, scratch / "input.safetensors")
    ours("logits", name, weights, scratch / "input.safetensors", scratch / "out.safetensors")
    found, wanted = safetensors.torch.load_file(scratch / "out.safetensors"), answers(model, given)
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


def both_ways(name, *shape):
    def case():
        with tempfile.TemporaryDirectory(prefix="skein-models-") as folder:
            scratch = pathlib.Path(folder)
            torch.manual_seed(2)
            images = torch.randn(shape)
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


def language(name, kind, config):
    def case():
        with tempfile.TemporaryDirectory(prefix="skein-models-") as folder:
            scratch = pathlib.Path(folder)
            torch.manual_seed(3)
            tokens = torch.randint(257, (3, 24))
            theirs = kind(config)
            with torch.no_grad():   # what begins as 0 or 1 would not tell one from another
                for p in theirs.parameters():
                    p.add_(torch.randn_like(p) / 10)
            theirs.save_pretrained(scratch / "theirs")
            compare(name, theirs, scratch / "theirs", tokens, scratch, "their weights here")
            theirs.save_pretrained(scratch / "shards", max_shard_size="20KB")
            assert len(list((scratch / "shards").glob("*.safetensors"))) > 2
            compare(name, theirs, scratch / "shards", tokens, scratch, "in shards")
            ours("make", name, scratch / "ours")
            given, said = kind.from_pretrained(scratch / "ours", output_loading_info=True)
            assert not said["missing_keys"] and not said["unexpected_keys"], said
            for key, value in config.to_dict().items():   # all that it was made with
                if key in GPT2 or key in LLAMA and not key.endswith("_token_id"):
                    assert given.config.to_dict()[key] == value or key.endswith("_token_id"), f"{key}: {given.config.to_dict()[key]}, not {value}"
            compare(name, given, scratch / "ours", tokens, scratch, "our weights there")
    return case


def refused(folder, words, **settings):
    given = LlamaConfig(**LLAMA).to_dict() | settings
    (folder / "config.json").write_text(json.dumps(given))
    safetensors.torch.save_file({"input": torch.zeros(1, 2, dtype=torch.long)}, folder / "input.safetensors")
    done = subprocess.run([find_program("skein_models"), "logits", "llama", folder, folder / "input.safetensors", folder / "out"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) <= 2, done
    for word in [*words, "config.json"]:
        assert word in done.stderr, f"no '{word}' in {done.stderr}"


def other_llamas_are_refused():
    with tempfile.TemporaryDirectory(prefix="skein-models-") as name:
        folder = pathlib.Path(name)
        refused(folder, ["a Llama whose rope_type is \"llama3\"; it has to be \"default\""],
                rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0})
        refused(folder, ["a Llama whose rope_scaling is"], rope_scaling={"type": "linear", "factor": 2.0})
        refused(folder, ["a Llama whose attention_bias is true"], attention_bias=True)
        refused(folder, ["a Llama whose hidden_act is \"gelu\""], hidden_act="gelu")
        refused(folder, ["a Llama whose model_type is \"mistral\""], model_type="mistral")
        refused(folder, ["6 heads of 10 numbers over 4 heads of keys"], num_key_value_heads=4)
        refused(folder, ["6 heads of 7 numbers"], head_dim=7)
        refused(folder, ["'hidden_size' is missing or is not a size"], hidden_size=0)
        refused(folder, ["'rope_parameters' is not an object"], rope_parameters=3)


def parameters_are_as_many():
    said = dict(line.split() for line in ours("count").splitlines())
    assert {name: int(count) for name, count in said.items()} == COUNTS, said
    for name, count in COUNTS.items():
        if name in SPEECH:
            model = Speech(name)
        elif name in PUBLISHED:
            with torch.device("meta"):
                model = (GPT2LMHeadModel if name == "gpt2" else LlamaForCausalLM)(PUBLISHED[name])
        else:
            with torch.device("meta"):
                model = getattr(torchvision.models, name)()
        assert sum(p.numel() for p in model.parameters()) == count, name


disable_progress_bar()
run_cases([("parameters are as many", parameters_are_as_many), *((name, both_ways(name, samples, 3, pixels, pixels)) for name, pixels, samples in CASES),
           *((name, both_ways(name, *shape)) for name, shape in SPEECH.items()),
           ("gpt2", language("gpt2", GPT2LMHeadModel, GPT2Config(**GPT2))),
           ("llama", language("llama", LlamaForCausalLM, LlamaConfig(**LLAMA))),
           ("llama with a tied head", language("tied_llama", LlamaForCausalLM, LlamaConfig(**LLAMA, tie_word_embeddings=True))),
           ("other Llamas are refused", other_llamas_are_refused)],
          sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime;metrics
"""Metrics over the parts of 1, 2 and 3 ranks are what torchmetrics says of all samples at once.

    metrics_torchmetrics_test.py [CASES [SEED]]     default: 1500 of seed 1
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, skip  # noqa: E402

try:
    import torch
    import torchmetrics
    import torchmetrics.functional as tm
    import torchmetrics.functional.text  # noqa: F401
    import torchmetrics.functional.classification as tmc
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs torchmetrics and, for Python 3.11 on x86-64, PyTorch")

TYPES = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.bool: "bool"}
NAMES = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "f1_score", "fbeta": "fbeta_score",
         "specificity": "specificity", "jaccard": "jaccard_index", "confusion_matrix": "confusion_matrix"}
DIVIDES = ("precision", "recall", "f1", "fbeta", "jaccard")
CURVES = {"auroc": "auroc", "average_precision": "average_precision", "exact_auroc": "auroc",
          "exact_average_precision": "average_precision"}
REGRESSION = ("mae", "mse", "rmse", "r2")
ALL = [*NAMES, *CURVES, *REGRESSION, "perplexity", "word_error_rate", "char_error_rate"]
WORDS = ["a", "be", "the", "rank", "h\u00e9llo", "\u4e16\u754c", "\U0001F600"]


def logits(*shape, dtype=torch.float32):
    """All outside of [0, 1], so that each batch is taken for logits."""
    x = torch.randn(*shape, dtype=dtype)
    return torch.where(x > 0, x + 1.01, x - 0.01)


def classification(draw, name):
    """(options, torchmetrics' function, its options, preds, target)"""
    task = draw.choice(["binary", "multiclass", "multiclass", "multilabel"])
    n = draw.choice([1, 2, 7, 30, 60])
    inner = draw.choice([(), (), (3,), (2, 3)])
    options, theirs = {}, {}
    if draw.random() < 0.4:
        ignored = draw.choice([-100, -1, 0, 1, 2] if task == "multiclass" else [-100, -1])
        options["ignore_index"] = theirs["ignore_index"] = ignored
    if name in DIVIDES and draw.random() < 0.3:
        options["zero_division"] = theirs["zero_division"] = 1
    if name == "fbeta":
        options["beta"] = theirs["beta"] = draw.choice([0.5, 1.0, 2.0])
    if name == "confusion_matrix":
        options["normalize"] = draw.choice(["none", "rows", "columns", "all"])
        theirs["normalize"] = {"none": None, "rows": "true", "columns": "pred", "all": "all"}[options["normalize"]]
    elif task != "binary":
        options["average"] = theirs["average"] = draw.choice(["micro", "macro", "weighted", "none"])
    if task == "multiclass":
        width = draw.choice([2, 3, 5, 40])
        options["classes"] = theirs["num_classes"] = width
        target = torch.randint(0, draw.choice([1, width, width]), (n, *inner))   # classes that never are the target
        kind = draw.choice(["scores", "scores", "double", "labels"])
        if kind == "labels":
            preds = torch.randint(0, draw.choice([1, width]), (n, *inner))
        else:
            preds = torch.randn(n, width, *inner, dtype=torch.float64 if kind == "double" else torch.float32)
            if name not in ("jaccard", "confusion_matrix") and draw.random() < 0.4:
                options["top_k"] = theirs["top_k"] = draw.randint(1, min(width, 5))
    else:
        shape = (n, *inner)
        if task == "multilabel":
            width = draw.choice([2, 4, 20])
            options["labels"] = theirs["num_labels"] = width
            shape = (n, width, *inner)
        target = torch.randint(0, draw.choice([1, 2, 2]), shape)
        kind = draw.choice(["probabilities", "logits", "double", "labels", "truths"])
        preds = {"probabilities": lambda: torch.rand(shape), "logits": lambda: logits(*shape),
                 "double": lambda: torch.rand(shape, dtype=torch.float64),
                 "labels": lambda: torch.randint(0, 2, shape), "truths": lambda: torch.randint(0, 2, shape) == 1}[kind]()
        if draw.random() < 0.5:
            options["threshold"] = theirs["threshold"] = draw.choice([0.1, 0.3, 0.75])
        if kind == "truths":
            options.pop("ignore_index", None)
            theirs.pop("ignore_index", None)
    if "ignore_index" in options:
        target[torch.rand(target.shape) < 0.3] = options["ignore_index"]
    return options, getattr(tmc, f"{task}_{NAMES[name]}"), theirs, preds, target


def curve(draw, name):
    task = draw.choice(["binary", "multiclass", "multilabel"])
    n, inner = draw.choice([1, 2, 7, 30, 60]), draw.choice([(), (), (3,), (2, 3)])
    options, theirs = {}, {"thresholds": None}
    if not name.startswith("exact"):
        options["thresholds"] = theirs["thresholds"] = draw.choice([2, 5, 50, 200])
    if draw.random() < 0.4:
        options["ignore_index"] = theirs["ignore_index"] = draw.choice([-100, 0, 1] if task == "multiclass" else [-100, -1])
    shape = target_shape = (n, *inner)
    if task != "binary":
        width = draw.choice([2, 3, 6])
        options["classes" if task == "multiclass" else "labels"] = width
        theirs["num_classes" if task == "multiclass" else "num_labels"] = width
        averages = ["macro", "weighted", "none"] + (["micro"] if task == "multilabel" else [])
        options["average"] = theirs["average"] = draw.choice(averages)
        shape = (n, width, *inner)
        target_shape = shape if task == "multilabel" else target_shape
    target = torch.randint(0, draw.choice([1, width, width]) if task == "multiclass" else draw.choice([1, 2, 2]), target_shape)
    kind = draw.choice(["probabilities", "logits", "edges"])
    double = torch.float64 if options.get("thresholds") and draw.random() < 0.2 else torch.float32
    if kind == "edges":   # ties, and scores that are thresholds
        preds = torch.linspace(0, 1, options.get("thresholds", 5))[torch.randint(0, options.get("thresholds", 5), shape)].to(double)
    else:
        preds = logits(*shape, dtype=double) if kind == "logits" else torch.rand(shape, dtype=double)
    if "ignore_index" in options:
        out = torch.rand(target.shape) < 0.3
        if name.startswith("exact"):
            out[0] = False   # torchmetrics takes no label without targets
            target[0] = torch.where(target[0] == options["ignore_index"], (options["ignore_index"] == 0) * 1, target[0])
        target[out] = options["ignore_index"]
    if kind == "edges" or apart(preds.double(), task, theirs["thresholds"]):
        return options, getattr(tmc, f"{task}_{CURVES[name]}"), theirs, preds, target
    return curve(draw, name)


def apart(scores, task, thresholds):
    """Whether the last bit of a probability cannot decide on which side of a threshold or of another score it is."""
    if bool(((scores < 0) | (scores > 1)).any()):
        scores = scores.softmax(1) if task == "multiclass" else scores.sigmoid()
    flat = scores.flatten().sort().values
    if thresholds:
        return bool((flat.unsqueeze(1) - torch.linspace(0, 1, thresholds).double()).abs().min() > 1e-6)
    return len(flat) < 2 or bool((flat[1:] - flat[:-1]).min() > 1e-6)


def regression(draw, name):
    shape = (draw.choice([2, 3, 40, 300]),)
    if name != "r2":
        shape += draw.choice([(), (3,), (2, 2)])
    target = torch.randn(shape, dtype=torch.float64) * draw.choice([1, 30])
    if draw.random() < 0.2:
        target[:] = 2.5
    preds = target + draw.choice([0, 1e-4, 1, 20]) * torch.randn(shape, dtype=torch.float64)
    options = {"adjusted": draw.choice([0, 0, 1, 2])} if name == "r2" else {}
    function = {"mae": tm.mean_absolute_error, "mse": tm.mean_squared_error, "r2": tm.r2_score,
                "rmse": lambda p, t: tm.mean_squared_error(p, t, squared=False)}[name]
    return options, function, dict(options), preds, target


def language(draw):
    shape = (draw.choice([1, 3, 8]), draw.choice([1, 5]))
    vocabulary = draw.choice([2, 30, 500])
    target, options = torch.randint(0, vocabulary, shape), {}
    if draw.random() < 0.5:
        options["ignore_index"] = draw.choice([-100, 1])
        target[torch.rand(shape) < 0.3] = options["ignore_index"]
    preds = torch.randn(*shape, vocabulary, dtype=draw.choice([torch.float32, torch.float64])) * draw.choice([1, 4])
    return options, lambda p, t, ignore_index=None: perplexity_of(p.double(), t, ignore_index), dict(options), preds, target


def perplexity_of(preds, target, ignore_index):
    return torchmetrics.functional.text.perplexity(preds, target, ignore_index)


def texts(draw):
    """Lines of words; the hypothesis is the reference with some changed, or another line."""
    def line():
        return [draw.choice(WORDS) for _ in range(draw.choice([0, 1, 5, 12]))]

    def text(words):
        return draw.choice([" ", "  ", "\t", "\u3000"]).join(words)
    out = {"preds": [], "target": []}
    for _ in range(draw.choice([1, 4, 20])):
        reference = line()
        heard = [w for w in reference if draw.random() < 0.8] if draw.random() < 0.7 else line()
        out["target"].append(text(reference))
        out["preds"].append(text(heard))
    if not any(out["target"]):
        out["target"][0] = "some"
    return out


def masked(draw, name, options, theirs, target):
    """A weight of 0 leaves an element out, as ignore_index does."""
    if "ignore_index" in options or name in REGRESSION or draw.random() > 0.3:
        return None, target
    if draw.random() < 0.5 or target.dim() == 1:
        weight = (torch.rand(target.shape) < 0.7).to(draw.choice([torch.float32, torch.bool]))
        out = weight == 0
    else:
        weight = (torch.rand(target.shape[0]) < 0.7).to(torch.float64)
        out = (weight == 0).reshape(-1, *[1] * (target.dim() - 1)).expand(target.shape).clone()
    if name.startswith("exact"):
        weight[0] = 1
        out[0] = False
    theirs["ignore_index"] = -7
    target = target.clone()
    target[out] = -7
    return weight, target


def ranks_of(draw, rows):
    """Batches of 1, 2 or 3 ranks: uneven, some empty, some ranks without any."""
    count = draw.randint(1, 3)
    edges = [0, *sorted(draw.choice([0, rows, draw.randint(0, rows)]) for _ in range(count - 1)), rows]
    out = []
    for begin, end in zip(edges, edges[1:]):
        inside = sorted(draw.randint(begin, end) for _ in range(draw.randint(0, 3)))
        out.append([begin, *inside, end] if begin < end or draw.random() < 0.5 else [])
    return out


def near(ours, wanted):
    if wanted != wanted:
        return ours != ours
    return abs(ours - wanted) <= 1e-6 * max(1.0, abs(wanted))


def check(case, line, wanted):
    """What differs, or None."""
    if "error" in line:
        return line["error"]
    shape = [] if wanted.dim() == 0 else list(wanted.shape)
    if line["shape"] != shape:
        return f"shape {line['shape']}, torchmetrics {shape}"
    for ours, theirs in zip(map(float, line["values"]), wanted.flatten().tolist()):
        exact = not wanted.is_floating_point()
        if (ours != theirs) if exact else not near(ours, theirs):
            return f"{line['values']}, torchmetrics {wanted.flatten().tolist()}"
    return None


def draw_case(draw, number, arrays):
    """(the case for our program, what torchmetrics says)"""
    torch.manual_seed(draw.randrange(1 << 30))
    name = ALL[number % len(ALL)]
    if name in ("word_error_rate", "char_error_rate"):
        lines = texts(draw)
        case = {"metric": name, "options": {}, "texts": lines, "ranks": ranks_of(draw, len(lines["target"]))}
        return case, getattr(torchmetrics.functional.text, name)(lines["preds"], lines["target"])
    if name in NAMES:
        options, function, theirs, preds, target = classification(draw, name)
    elif name in CURVES:
        options, function, theirs, preds, target = curve(draw, name)
    elif name == "perplexity":
        options, function, theirs, preds, target = language(draw)
    else:
        options, function, theirs, preds, target = regression(draw, name)
    weight, seen = masked(draw, name, options, theirs, target)
    case = {"metric": name, "options": options, "arrays": {}, "ranks": ranks_of(draw, target.shape[0])}
    for what, tensor in (("preds", preds), ("target", target), ("weight", weight)):
        if tensor is None:
            continue
        case["arrays"][what] = {"type": TYPES[tensor.dtype], "shape": list(tensor.shape), "at": len(arrays)}
        arrays += tensor.contiguous().numpy().tobytes()
        arrays += bytes(-len(arrays) % 8)
    return case, function(preds, seen, **theirs)


def main():
    count, seed = (int(a) for a in (*sys.argv[1:], *["1500", "1"][len(sys.argv) - 1:]))
    program = find_program("skein_metric_cases")
    draw = random.Random(seed)
    warnings.simplefilter("ignore")
    arrays = bytearray()
    cases = [draw_case(draw, number, arrays) for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="skein-metrics-") as folder:
        files = [pathlib.Path(folder) / name for name in ("cases.json", "arrays.bin")]
        files[0].write_text(json.dumps([case for case, _ in cases]))
        files[1].write_bytes(arrays)
        out = subprocess.run([program, *files], check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == count, (len(lines), count)
    failed = 0
    for number, ((case, wanted), line) in enumerate(zip(cases, lines)):
        why = check(case, line, wanted)
        if why:
            failed += 1
            print(f"FAILED  case {number} of seed {seed}: {json.dumps(case)}\n        {why}")
    print(f"{count - failed} of {count} cases are as torchmetrics {torchmetrics.__version__} says, torch {torch.__version__}")
    sys.exit(1 if failed else 0)


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes adaptdl_numbers.inc: what adaptdl 0.2.11 makes of random models, for goodput_test.cpp and others.

adaptdl_numbers.py FOLDER     FOLDER: the unpacked wheel (pip download --no-deps adaptdl==0.2.11)

Only its formulas are asked (goodput.py, torch/scaling_rules.py): autograd and scipy, which its fit needs, are not.
"""
import importlib.util
import pathlib
import random
import sys
import types

import numpy as np

np.int = int    # numpy had that name when this was written
for name in ("autograd", "scipy", "scipy.optimize", "scipy.stats", "adaptdl", "adaptdl.torch", "adaptdl.torch.data"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["scipy"].optimize, sys.modules["scipy"].stats = sys.modules["scipy.optimize"], sys.modules["scipy.stats"]
loader = types.SimpleNamespace(batch_size=0)
sys.modules["adaptdl.torch.data"].current_dataloader = lambda: loader


def load(path):
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


folder = pathlib.Path(sys.argv[1])
goodput, rules = load(folder / "adaptdl/goodput.py"), load(folder / "adaptdl/torch/scaling_rules.py")
draw = random.Random(44)


def between(low, high):
    return low * (high / low) ** draw.random()


def numbers(*all):
    return "{" + ", ".join(repr(float(x)) if isinstance(x, float) else str(int(x)) for x in all) + "}"


def model():
    return [between(1e-3, 1), between(1e-5, 1e-1), between(1e-3, 1), between(1e-5, 1e-1),
            between(1e-4, 1), between(1e-6, 1e-2), draw.uniform(1, 10)]


out = ["// SPDX-License-" + "Identifier: Apache-2.0",
       "// Written by adaptdl_numbers.py from adaptdl 0.2.11.",
       "// clang-format off", ""]
out += ["// parameters, sqr, var, first batch | nodes, ranks, most, micro least, micro most, accumulation | goodput, micro, parts - 1",
        "inline constexpr searched adaptdl_searches[] = {"]
for _ in range(60):
    first, params = draw.choice([16, 32, 64, 100]), model()
    sqr, var = between(1e-3, 10), between(1e-3, 1e3)
    nodes = draw.choice([1, 1, 2, 4])
    ranks = nodes * draw.choice([1, 2, 4])
    least, most = draw.choice([1, 8]), draw.choice([64, 128, 1024])
    top, accumulation = first * draw.choice([4, 16, 64]), draw.random() < 0.6
    made = goodput.GoodputFunction(params, (sqr, var), first)
    value, micro, parts = made.optimize(nodes, ranks, top, (least, most), accumulation)
    out.append("    {" + numbers(*params) + ", " + ", ".join([repr(sqr), repr(var), str(first), str(nodes), str(ranks), str(top), str(least), str(most),
               "true" if accumulation else "false", repr(float(value)), str(int(micro)), str(int(parts))]) + "},")
out += ["};", "", "// parameters | rows of nodes, ranks, micro-batch, seconds of a micro-batch, of the last one | the objective of its fit",
        "inline constexpr objective adaptdl_objectives[] = {"]
for _ in range(20):
    params, rows = model(), []
    for _ in range(4):
        nodes = draw.choice([1, 1, 2])
        rows.append((nodes, nodes * draw.choice([1, 2, 4]), draw.choice([8, 16, 32, 64]), between(1e-2, 2), between(1e-2, 3)))
    columns = [np.array(column) for column in zip(*rows)]
    value = goodput._obj_fn(params, *columns)
    out.append("    {" + numbers(*params) + ", {" + ", ".join(numbers(*row) for row in rows) + "}, " + repr(float(value)) + "},")
out += ["};", "", "// scale, sqr, var, progress, epochs of warm-up, samples, first batch | adascale, adamscale, linear, sqrt, legw",
        "inline constexpr ruled adaptdl_rates[] = {"]
for _ in range(20):
    scale, sqr, var, progress = between(1, 64), between(1e-3, 10), between(1e-3, 1e3), between(1, 1e4)
    epochs, samples, loader.batch_size = draw.choice([1, 2, 5]), draw.choice([1000, 60000]), draw.choice([32, 128])
    adp = types.SimpleNamespace(gns=types.SimpleNamespace(raw_sqr_avg=np.array([sqr]), raw_var_avg=np.array([var]), get_progress=lambda: progress))
    got = []
    for rule in (rules.AdaScale(), rules.AdamScale(), rules.LinearScale(), rules.SqrtScale(), rules.LEGWScale(epochs, samples)):
        rule.adp = adp
        got.append(float(np.asarray(rule.scale_lr(scale)).ravel()[0]))
    out.append("    {" + ", ".join([repr(scale), repr(sqr), repr(var), repr(progress), str(epochs), str(samples), str(loader.batch_size), numbers(*got)]) + "},")
out += ["};", ""]
pathlib.Path(__file__).with_name("adaptdl_numbers.inc").write_text("\n".join(out))

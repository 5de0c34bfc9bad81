#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""reduce_on_plateau gives the rates of torch.optim.lr_scheduler.ReduceLROnPlateau, over 500 random curves; negative numbers by their size."""
import math
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, skip  # noqa: E402

try:
    import torch
    from torch.optim.lr_scheduler import ReduceLROnPlateau
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs PyTorch for Python 3.11 on x86-64")

CURVES = 500


class Scheduler(ReduceLROnPlateau):
    """torch's, but for what it takes for an improvement on a negative number (pytorch#47513): there the threshold has to be passed, too."""
    def _is_better(self, a: float, best: float) -> bool:
        if self.threshold_mode == "rel" and -math.inf < best < 0:
            return a < best * (1.0 + self.threshold) if self.mode == "min" else a > best * (1.0 - self.threshold)
        return super()._is_better(a, best)


def draw(chance: random.Random) -> tuple:
    """Settings as ReduceLROnPlateau takes them, the first rate, and the numbers: falling, level or rising, with noise."""
    how = {"factor": chance.choice([0.0, 0.1, 0.5, 0.9, chance.random()]), "patience": chance.choice([0, 1, 2, 5, 10]),
           "threshold": chance.choice([0.0, 1e-4, 0.05, 1.0]), "threshold_mode": chance.choice(["rel", "abs"]),
           "cooldown": chance.choice([0, 0, 1, 4]), "min_lr": chance.choice([0.0, 0.0, 1e-3, 0.02]),
           "eps": chance.choice([1e-8, 0.0, 1e-3]), "mode": chance.choice(["min", "max"])}
    rate, value, slope = chance.choice([0.1, 1e-3, chance.random()]), chance.uniform(-3, 3), chance.choice([-0.1, 0.0, 0.0, 0.1])
    numbers = []
    for _ in range(chance.randint(1, 80)):
        value += slope * chance.random() * chance.choice([0, 1])
        numbers.append(value + chance.gauss(0, 0.02) * chance.choice([0, 1]))
        if chance.random() < 0.01:
            numbers[-1] = chance.choice([math.nan, math.inf, -math.inf])
    return how, rate, numbers


def torchs(how: dict, rate: float, numbers: list) -> list:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = Scheduler(optimizer, **how)
    out = []
    for number in numbers:
        scheduler.step(number)
        out.append(optimizer.param_groups[0]["lr"])
    return out


def main() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    curves = [draw(chance) for _ in range(CURVES)]
    lines = []
    for how, rate, numbers in curves:
        settings = [how["factor"], how["patience"], how["threshold"], int(how["threshold_mode"] == "rel"), how["cooldown"], how["min_lr"],
                    how["eps"], int(how["mode"] == "min"), rate]
        lines += [" ".join(map(repr, settings)), " ".join(map(repr, numbers))]
    run = subprocess.run([find_program("skein_plateau")], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    ours = [[float(word) for word in line.split()] for line in run.stdout.splitlines()]
    assert len(ours) == CURVES, len(ours)
    lowered = 0
    for (how, rate, numbers), got in zip(curves, ours):
        wanted = torchs(how, rate, numbers)
        lowered += sum(a != b for a, b in zip(wanted, wanted[1:]))
        assert len(got) == len(wanted), (how, len(got), len(wanted))
        for step, (a, b) in enumerate(zip(got, wanted)):
            assert math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300), (how, rate, numbers[:step + 1], step, a, b)
    assert lowered > CURVES, lowered    # else the curves show nothing
    print(f"{CURVES} curves as torch {torch.__version__}, {lowered} changes of the rate")


main()

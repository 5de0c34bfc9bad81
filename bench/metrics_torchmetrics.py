#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The 20 metrics of bench/metrics.cpp by torchmetrics: two processes on Gloo, one thread each; prints milliseconds."""
import os
import socket
import subprocess
import sys
import time
import warnings

ROWS, CLASSES, UPDATES, MERGES = 1024, 256, 3, 3


def twenty():
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (MulticlassAccuracy, MulticlassAUROC, MulticlassAveragePrecision, MulticlassConfusionMatrix,
                                             MulticlassF1Score, MulticlassFBetaScore, MulticlassJaccardIndex, MulticlassPrecision,
                                             MulticlassRecall, MulticlassSpecificity)
    made = {}
    for average in ("micro", "macro", "weighted"):
        for name, kind in {"accuracy": MulticlassAccuracy, "precision": MulticlassPrecision, "recall": MulticlassRecall,
                           "f1": MulticlassF1Score}.items():
            made[f"{name}_{average}"] = kind(CLASSES, average=average)
    made["top5"] = MulticlassAccuracy(CLASSES, average="micro", top_k=5)
    made["fbeta"] = MulticlassFBetaScore(2.0, CLASSES)
    made["specificity"] = MulticlassSpecificity(CLASSES)
    made["jaccard"] = MulticlassJaccardIndex(CLASSES)
    made["confusion"] = MulticlassConfusionMatrix(CLASSES)
    curves = {"auroc": MulticlassAUROC(CLASSES, thresholds=200), "average_precision": MulticlassAveragePrecision(CLASSES, thresholds=200)}
    return MetricCollection(made), MetricCollection(curves)


def rank():
    import torch
    from torchmetrics.text import Perplexity
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(torch.distributed.get_rank())
    scores, labels = torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))
    (plain, curves), text = twenty(), Perplexity()

    def update_plain():
        plain.update(scores, labels)
        text.update(scores[None], labels[None])

    def update_curves():
        curves.update(scores, labels)

    def spent(update):
        update()   # compute groups are found by the first one
        begin = time.perf_counter()
        for _ in range(UPDATES):
            update()
        return 1e3 * (time.perf_counter() - begin) / UPDATES

    said = f"update {spent(update_plain)}\ncurves {spent(update_curves)}\n"
    merging = 0.0
    for _ in range(MERGES):
        for each in (plain, curves, text):
            each.reset()
        update_plain()
        update_curves()
        torch.distributed.barrier()
        begin = time.perf_counter()
        for each in (plain, curves, text):
            each.compute()
        merging += (time.perf_counter() - begin) / MERGES
    if torch.distributed.get_rank() == 0:
        print(f"{said}merge {1e3 * merging}", flush=True)
    torch.distributed.destroy_process_group()


def main():
    if "RANK" in os.environ:
        return rank()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2",
                                                               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for r in range(2)]
    return max(p.wait() for p in ranks)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The baselines of bench/elastic.cpp: TorchElastic and torchft, with bench/elastic_pytorch.py; and `skein run` of the same script.

elastic_torchrun.py [--repeats N] [--only skein_run|default|tuned|torchft]    prints JSON lines. Run it by a Python that has torch.

skein_run: `skein run --standalone --nproc-per-node 2` in the place of torchrun, where SKEIN_BUILD_DIR has it: all ranks start again.

default: torchrun --standalone --nproc-per-node 2, with a budget of restarts. tuned: the same with --monitor-interval 0.01 and
--rdzv-conf last_call_timeout=1, and a store of its own for each start (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1): in the shared one a
rank can find the address of a rank before it, and is stuck. torchft: two replicas and a lighthouse with its defaults; who was killed is started again at once.
"""
import argparse
import os
import pathlib
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from elastic_lib import Job, events, figure, kill, percentile  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("elastic_pytorch.py")
FLAGS = {"default": [], "tuned": ["--monitor-interval", "0.01", "--rdzv-conf", "last_call_timeout=1"]}
VARIABLES = {"default": {}, "tuned": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}
MANY = 10 ** 9      # steps: a job goes on until it is ended


def tell(name, measured, version):
    found, stuck, started = measured
    if not found:
        print(f"elastic.{name}: stuck each time", file=sys.stderr)
        return
    gaps, redone, steps = zip(*found)
    more = {"version": version, "repeats": len(found), "stuck": stuck}
    if started:
        figure(f"elastic.{name}_first_step", percentile(started, 0.5), "s", **more)
    figure(f"elastic.{name}_gap_p50", percentile(gaps, 0.5), "s", **more)
    figure(f"elastic.{name}_gap_p95", percentile(gaps, 0.95), "s", **more)
    figure(f"elastic.{name}_steps_redone", max(redone), "steps", least=min(redone), **more)
    figure(f"elastic.{name}_step", percentile(steps, 0.5), "s", **more)


def ranks(launcher, repeats, *flags, **variables):
    """Two ranks of one launcher."""
    return lambda folder, log: Job([*launcher, "--standalone", "--nproc-per-node", "2", "--max-restarts", 10 * repeats, *flags, sys.executable, SCRIPT,
                                    "--file", log, "--steps", MANY, "--checkpoint", f"{folder}/checkpoint"], folder, **variables)


def torchrun(how, repeats):
    return ranks([sys.executable, "-m", "torch.distributed.run", "--no-python"], repeats, *FLAGS[how], **VARIABLES[how])


class Replicas:
    """Two replicas of torchft, each started again as soon as it is gone."""
    returncode = None

    def __init__(self, folder, log):
        from torchft.coordination import LighthouseServer
        self.lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1)
        self.how = (folder, log)
        self.stores = []
        self.ranks = [self.launch(rank) for rank in range(2)]

    def launch(self, rank):
        from torch.distributed import TCPStore
        folder, log = self.how
        self.stores.append(TCPStore("localhost", 0, is_master=True, wait_for_workers=False))    # each has a store of its own
        return Job([sys.executable, SCRIPT, "--file", log, "--steps", MANY, "--torchft"], folder, RANK="0", WORLD_SIZE="1",
                   TORCHFT_LIGHTHOUSE=self.lighthouse.address(), MASTER_ADDR="localhost", MASTER_PORT=str(self.stores[-1].port),
                   REPLICA=str(rank))

    def poll(self):
        for rank, process in enumerate(self.ranks):
            if process.poll() is not None:
                self.ranks[rank] = self.launch(rank)

    def end(self):
        for process in self.ranks:
            process.end()
        self.lighthouse.shutdown()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repeats", type=int, default=10)
    arguments.add_argument("--only", choices=["skein_run", *FLAGS, "torchft"])
    asked = arguments.parse_args()
    try:
        import torch
    except ImportError as missing:
        sys.exit(f"{missing}: set SKEIN_PYTHON to a Python that has torch")
    skein = pathlib.Path(os.environ.get("SKEIN_BUILD_DIR", "build/release"), "bin", "skein")
    if asked.only in (None, "skein_run") and skein.exists():
        for victim, name in ((1, "worker"), (0, "rank_0")):
            print(f"-- skein run, kill -9 of {name}", file=sys.stderr, flush=True)
            tell(f"skein_run.kill_{name}", events(ranks([skein, "run"], asked.repeats), kill(victim), asked.repeats), f"torch {torch.__version__}")
    elif asked.only == "skein_run":
        sys.exit(f"{skein} is not there: set SKEIN_BUILD_DIR")
    for how in FLAGS:
        for victim, name in ((1, "worker"), (0, "rank_0")):
            if asked.only in (None, how):
                print(f"-- torchrun, {how} flags, kill -9 of {name}", file=sys.stderr, flush=True)
                tell(f"torchrun_{how}.kill_{name}", events(torchrun(how, asked.repeats), kill(victim), asked.repeats), f"torch {torch.__version__}")
    if asked.only not in (None, "torchft"):
        return
    try:
        import torchft  # noqa: F401
    except ImportError as missing:
        print(f"torchft is left out: {missing}", file=sys.stderr)
        return
    import importlib.metadata
    version = f"torchft {importlib.metadata.version('torchft')}, torch {torch.__version__}"
    for victim, name in ((1, "worker"), (0, "replica_0")):
        print(f"-- {version}, kill -9 of {name}", file=sys.stderr, flush=True)
        tell(f"torchft.kill_{name}", events(Replicas, kill(victim), asked.repeats), version)


if __name__ == "__main__":
    main()

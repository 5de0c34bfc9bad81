#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Digits to an accuracy: worker-seconds of an adaptive batch from 64 on, beside fixed batches, in one run in turns.

adaptive_mnist.py --data DIR [--workers 2] [--hosts] [--target 0.975] [--seeds 3] [--batches 64,128,256]    prints JSON lines

A fixed batch has the schedule's rate times the root of its size by 64 (of once, the root and linear the best, on these digits). The time of a
step is its `step_seconds`, without evaluations. --hosts (as root): two network namespaces, one worker each, joined by a cable of
--mbit megabits per second. SKEIN_BUILD_DIR has the programs; the digits are the MNIST files of DIR, packed or not, the last 2,000 for the test.
"""
import argparse
import gzip
import json
import math
import os
import pathlib
import secrets
import statistics
import subprocess
import tempfile

asking = argparse.ArgumentParser()
asking.add_argument("--data", required=True)
asking.add_argument("--workers", type=int, default=2)
asking.add_argument("--hosts", action="store_true")
asking.add_argument("--mbit", type=float, default=20)
asking.add_argument("--target", type=float, default=0.975)
asking.add_argument("--seeds", type=int, default=3)
asking.add_argument("--batches", default="64,128,256,512")
asking.add_argument("--epochs", type=int, default=12)
asked = asking.parse_args()

BUILD = pathlib.Path(os.environ.get("SKEIN_BUILD_DIR", "build/clang")).resolve()
EXAMPLE, SKEIN = BUILD / "examples" / "320_adaptive_mnist", BUILD / "bin" / "skein"


def unpack(folder, into):
    for path in pathlib.Path(folder).glob("*-ubyte*"):
        raw = path.read_bytes()
        pathlib.Path(into, path.name.removesuffix(".gz")).write_bytes(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """Two network namespaces and a slow cable."""
    names = [f"skein-bench-{os.getpid()}-{i}" for i in (1, 2)]

    def __enter__(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "skb1", "netns", self.names[0], "type", "veth", "peer", "name", "skb2", "netns", self.names[1])
        for i, name in enumerate(self.names, 1):
            ip("-n", name, "addr", "add", f"10.87.0.{i}/24", "dev", f"skb{i}")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", f"skb{i}", "up")
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", f"skb{i}", "root", "tbf", "rate", f"{asked.mbit}mbit", "burst", "32kbit",
                            "latency", "400ms"], check=True)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name])

    def run(self, words):
        token = dict(os.environ, SKEIN_TOKEN=secrets.token_hex(32), OMP_NUM_THREADS="1")
        both = [subprocess.Popen(["ip", "netns", "exec", name, SKEIN, "run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", "10.87.0.1:29400",
                                  "--rdzv-id", "digits", "--local-addr", f"10.87.0.{i}", *words], env=token, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                for i, name in enumerate(self.names, 1)]
        for each in both:
            _, said = each.communicate(timeout=3600)
            if each.returncode != 0:
                raise SystemExit(said.decode())


def reached(folder):
    """Seconds of steps until the target, steps, and the batches on the way."""
    seconds, sizes = 0.0, []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        seconds += row["step_seconds"]
        sizes.append(int(row.get("global_batch", 0)))
        if row.get("test_accuracy", 0) >= asked.target:
            return seconds, row["step"], sizes
    return math.inf, 0, sizes


def main():
    with tempfile.TemporaryDirectory(prefix="skein-bench-") as folder:
        data = pathlib.Path(folder, "data")
        data.mkdir()
        unpack(asked.data, data)
        cases = {"adaptive": ["--max", 1024, "--decide-every", 1]}
        for batch in map(int, asked.batches.split(",")):
            cases[f"fixed_{batch}"] = ["--fixed", "--batch", batch, "--lr", 0.05 * math.sqrt(batch / 64)]
        found = {name: [] for name in cases}
        hosts = Hosts() if asked.hosts else None
        if hosts:
            hosts.__enter__()
        try:
            for seed in range(1, asked.seeds + 1):
                for name, more in cases.items():
                    epochs = asked.epochs
                    words = [str(w) for w in (EXAMPLE, "--data", data, "--test", 2000, "--epochs", epochs, "--eval-every", 20, "--seed", seed, "--plain",
                                              "--checkpoint-every", 0, "--runs-dir", folder, "--name", f"{name}-{seed}", *more)]
                    if hosts:
                        hosts.run(words)
                    else:
                        subprocess.run([*words, "--workers", str(asked.workers)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    seconds, steps, sizes = reached(pathlib.Path(folder, f"{name}-{seed}"))
                    workers = 2 if hosts else asked.workers
                    found[name].append(seconds * workers)
                    print(json.dumps({"bench": f"adaptive_mnist.{name}", "seed": seed, "worker_seconds": round(seconds * workers, 2), "steps": steps,
                                      "last_batch": sizes[-1]}), flush=True)
        finally:
            if hosts:
                hosts.__exit__()
        fixed = {name: statistics.median(all_) for name, all_ in found.items() if name != "adaptive"}
        adaptive, best = statistics.median(found["adaptive"]), min(fixed, key=fixed.get)
        print(json.dumps({"bench": "adaptive_mnist", "target": asked.target, "hosts": 2 if asked.hosts else 1, "workers": 2 if asked.hosts else asked.workers,
                          "adaptive": round(adaptive, 2), "by_fixed_64": round(adaptive / fixed.get("fixed_64", math.inf), 3), "best": best,
                          "by_best": round(adaptive / fixed[best], 3), "seeds": asked.seeds}))


if __name__ == "__main__":
    main()

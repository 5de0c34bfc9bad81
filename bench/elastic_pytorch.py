#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of bench/elastic.cpp in Python PyTorch, as a training that TorchElastic or torchft can go on with.

elastic_pytorch.py --file FILE --steps N --checkpoint FILE   a rank of torchrun: DDP over Gloo, a checkpoint every 20 steps
elastic_pytorch.py --file FILE --steps N --torchft           one replica of torchft, in a world of its own

Each step appends two lines to the log: "begin|done NANOSECONDS STEP RANK PID", of the monotonic clock.
"""
import argparse
import os
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--file", required=True)
arguments.add_argument("--steps", type=int, required=True)
arguments.add_argument("--checkpoint")
arguments.add_argument("--every", type=int, default=20)
arguments.add_argument("--batch", type=int, default=64, help="samples per step, over all ranks")
arguments.add_argument("--torchft", action="store_true")


def main():
    asked = arguments.parse_args()
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    log = os.open(asked.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    rank = int(os.environ.get("REPLICA", os.environ["RANK"]))

    def note(what, step):
        os.write(log, f"{what} {time.monotonic_ns()} {step} {rank} {os.getpid()}\n".encode())

    model = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.ReLU(),
                                torch.nn.Linear(512, 10))
    (with_torchft if asked.torchft else with_torchrun)(asked, torch, model, note, rank)


def sample(torch, step, rank, many):
    """A batch that step and rank alone decide."""
    draw = torch.Generator().manual_seed(1000003 * step + rank)
    return torch.randn(many, 784, generator=draw), torch.randint(0, 10, (many,), generator=draw)


def with_torchrun(asked, torch, model, note, rank):
    torch.distributed.init_process_group("gloo")
    world = torch.distributed.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if os.path.exists(asked.checkpoint):
        saved = torch.load(asked.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    trained = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    while step < asked.steps:
        note("begin", step + 1)
        x, y = sample(torch, step, rank, asked.batch // world)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
        step += 1
        note("done", step)
        if step % asked.every == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, asked.checkpoint + ".part")
            os.replace(asked.checkpoint + ".part", asked.checkpoint)
    torch.distributed.destroy_process_group()


def with_torchft(asked, torch, model, note, rank):
    import datetime

    import torchft
    torch._C._distributed_c10d._reset_fr_recording_nccl = lambda: None      # a PyTorch without its CUDA half has none
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(saved):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    manager = torchft.Manager(pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), load_state_dict=load, min_replica_size=1,
                              state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                              replica_id=f"replica_{rank}", timeout=datetime.timedelta(seconds=10))
    trained, managed = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    while manager.current_step() < asked.steps:
        before = manager.current_step()
        note("begin", before + 1)
        x, y = sample(torch, before, rank, asked.batch // 2)
        managed.zero_grad()
        torch.nn.functional.cross_entropy(trained(x), y).backward()
        managed.step()
        if manager.current_step() > before:
            note("done", manager.current_step())
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()

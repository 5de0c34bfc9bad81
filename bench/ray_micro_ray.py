# SPDX-License-Identifier: Apache-2.0
"""Ray's side of bench/ray_micro.cpp: the shapes of Ray's own microbenchmark, one round at a time.

    ray_micro_ray.py --start       a whole program: prints a line when its first task has a result
    ray_micro_ray.py --serve FD    measures on request, see ray_lib.serve()
"""
import sys

import ray
from ray_lib import serve, within_ray

BATCH = 1000


@ray.remote
def small_value():
    return b"ok"


@ray.remote(num_cpus=0)
class Actor:
    def small_value(self):
        return b"ok"


def first_result():
    ray.get(small_value.remote())
    print("first", flush=True)


def shapes():
    actor = Actor.remote()
    serve(int(sys.argv[2]), {
        "single_client_tasks_sync": (lambda: ray.get(small_value.remote()), 1),
        "single_client_tasks_async": (lambda: ray.get([small_value.remote() for _ in range(BATCH)]), BATCH),
        "1_1_actor_calls_sync": (lambda: ray.get(actor.small_value.remote()), 1),
        "1_1_actor_calls_async": (lambda: ray.get([actor.small_value.remote() for _ in range(BATCH)]), BATCH)})


if __name__ == "__main__":
    within_ray(first_result if sys.argv[1] == "--start" else shapes)

# SPDX-License-Identifier: Apache-2.0
"""Ray's side of bench/objects.cpp: values and refs in its object store, one shape at a time.

    objects_ray.py --serve FD    measures on request, see ray_lib.serve()
"""
import sys

import numpy
import ray
from ray_lib import serve, within_ray

LARGE = 64 << 20
REFS = 10_000


@ray.remote
def give_back(array):
    return array


@ray.remote
def count(refs):
    return len(refs)


@ray.remote
def make_refs(n):
    return [ray.put(i) for i in range(n)]


def shapes():
    large = numpy.ones(LARGE, dtype=numpy.uint8)
    small = ray.put(7)
    refs = [ray.put(i) for i in range(REFS)]
    serve(int(sys.argv[2]), {
        "put_64_mib": (lambda: ray.put(large), 1),
        "take_and_return_64_mib": (lambda: ray.get(give_back.remote(large)), 1),
        "small_put": (lambda: ray.put(7), 1),
        "small_get": (lambda: ray.get(small), 1),
        "10000_refs_as_argument": (lambda: ray.get(count.remote(refs)), 1),
        "10000_refs_as_result": (lambda: ray.get(make_refs.remote(REFS)), 1),
        "10000_refs_in_wait": (lambda: ray.wait(refs, num_returns=REFS), 1),
        "10000_refs_in_get": (lambda: ray.get(refs), 1)})


if __name__ == "__main__":
    within_ray(shapes)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects on a cluster of two nodes: each node gets one copy of what its tasks read, and a node that is lost takes its objects along.

    far_objects_test.py [NAME]
"""
# label: runtime
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster_test import Cluster  # noqa: E402
from program import find_program, run_cases  # noqa: E402

SECONDS = 120.0
LARGE = 64 << 20


class Stores(Cluster):
    """Nodes of two cpus each that say what objects they bring."""

    def __init__(self, store="256MiB"):
        self.store = store
        super().__init__([(name, ["--resources", "cpu=2", "--store", store]) for name in ("n1", "n2")])

    def join(self, name, *arguments, **env):
        super().join(name, *arguments, SKEIN_LOG_LEVEL="debug", **env)

    def expect(self, lines, *arguments, **env):
        env.setdefault("SKEIN_STORE", "256MiB")
        run = self.run(find_program("skein_far_objects"), "--address", self.address, *arguments, **env)
        run.check(run.wait(SECONDS) == 0, f"exit code {run.process.returncode}")
        run.check(run.stdout.splitlines() == lines, "other lines")
        return run

    def brought(self, name):
        """Bytes of the objects that a node got, one after the other."""
        return [int(n) for n in re.findall(r"an object was brought here .*bytes=(\d+)", self.nodes[name].stderr)]


def one_copy_for_each_node():
    """The driver puts 64 MiB, two tasks on each of two nodes read it: one transfer to each node: [V10]."""
    with Stores() as c:
        c.expect(["right"], "share")
        assert c.brought("n1") == [LARGE] and c.brought("n2") == [LARGE], (c.brought("n1"), c.brought("n2"))
        c.end()


def from_node_to_node():
    """A task on one node returns 64 MiB, one on the other takes it; so does the driver."""
    with Stores() as c:
        c.expect(["right", "whole in the store"], "pass")
        assert c.brought("n2") == [LARGE] and c.brought("n1") == [], (c.brought("n1"), c.brought("n2"))
        c.end()


def refs_in_values():
    with Stores() as c:
        c.expect(["right"], "inside")
        c.end()


def a_node_is_lost():
    """What an actor elsewhere has of its objects it goes on reading; what the driver has goes to calls as a value: [V11]."""
    with Stores() as c:
        c.expect(["ready", "right", "right"], "lost")
        c.nodes.pop("n1").wait(SECONDS)
        c.end()


def without_stores():
    """The same by messages."""
    with Stores("0") as c:
        c.expect(["right"], "share")
        c.expect(["right", "whole in memory"], "pass", SKEIN_STORE="0")
        assert not c.brought("n1") and not c.brought("n2")
        c.end()


def by_default():
    """Nobody has asked for stores, and they are there."""
    with Stores() as c:
        c.expect(["right", "whole in the store"], "pass", SKEIN_STORE="")
        assert c.brought("n2") == [LARGE] and c.brought("n1") == [], (c.brought("n1"), c.brought("n2"))
        c.end()


CASES = [("one copy for each node", one_copy_for_each_node), ("from node to node", from_node_to_node),
         ("refs in values", refs_in_values), ("a node is lost", a_node_is_lost), ("without stores", without_stores),
         ("by default", by_default)]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1] if len(sys.argv) > 1 else None)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare_hashes.py FILE: the trace of a seed is the same from each compiler.

FILE is what `skein_sim --hashes` has written in this build (build/NAME/tests/skein_sim.hashes). It is compared with
those of the builds beside it (build/*/tests/skein_sim.hashes) that are of the same sources; others are told and passed
over. SKEIN_TRACES_OF names builds, with blanks between, that must be there and of the same sources: scripts/test names
the stages that have passed before.
"""
import os
import pathlib
import sys

SHOWN = 5


class traces:
    """One file: of which sources and compiler, and (trace, events) by (scenario, seed)."""

    def __init__(self, path: pathlib.Path):
        self.path, self.build = path, path.parent.parent
        first, second, *runs = path.read_text(encoding="utf-8").splitlines()
        self.sources, self.compiler = first.removeprefix("sources "), second.removeprefix("compiler ").strip()
        self.runs = {}
        for line in runs:
            scenario, seed, trace, events = line.split()
            self.runs[scenario, int(seed)] = trace, int(events)
        if first == self.sources or second == self.compiler or not self.runs:
            raise ValueError("no traces in it")


def difference(mine: traces, other: traces) -> str:
    """What the two do differently, and how to find out why; nothing when all traces that both have are equal."""
    both = sorted(mine.runs.keys() & other.runs.keys())
    wrong = [run for run in both if mine.runs[run] != other.runs[run]]
    if not wrong:
        return "" if both else f"{other.build.name} and {mine.build.name} have no scenario and seed in common"
    lines = [f"{len(wrong)} of {len(both)} traces differ, although the sources are the same:",
             f"  {other.build.name}: {other.compiler}", f"  {mine.build.name}: {mine.compiler}"]
    for run in wrong[:SHOWN]:
        (theirs, their_events), (ours, our_events) = other.runs[run], mine.runs[run]
        lines.append(f"  {run[0]} seed {run[1]}: {theirs} after {their_events} events, {ours} after {our_events}")
    if len(wrong) > SHOWN:
        lines.append(f"  and {len(wrong) - SHOWN} more")
    scenario, seed = wrong[0]
    lines.append("the first line in which these files differ tells where:")
    lines += [f"  {one.build}/tests/skein_sim --seeds 1 --first {seed} --scenario {scenario} --trace {one.build.name}.trace"
              for one in (other, mine)]
    lines.append("most often one call draws twice among its arguments, f(w.below(3), w.below(5)): compilers evaluate them in "
                 "different orders; draw into a name first")
    return "\n".join(lines)


def compare(path: pathlib.Path, needed: list) -> int:
    mine = traces(path)
    failed, equal = False, []
    for name in needed:
        if not (mine.build.parent / name / "tests" / path.name).exists():
            print(f"error: nothing to compare with: {mine.build.parent / name}/tests/{path.name} is missing; the test sim.seeds writes it")
            failed = True
    for there in sorted(mine.build.parent.glob(f"*/tests/{path.name}")):
        if there == path:
            continue
        try:
            other = traces(there)
        except ValueError:
            print(f"error: {there} is broken; the test sim.seeds writes it again")
            failed = True
            continue
        if other.sources != mine.sources:
            must = other.build.name in needed
            print(f"{'error: ' if must else ''}{other.build.name} is a build of other sources: not compared")
            failed |= must
            continue
        wrong = difference(mine, other)
        if wrong:
            print(f"error: {wrong}")
            failed = True
        else:
            equal.append(f"{len(mine.runs.keys() & other.runs.keys())} traces are those of {other.build.name} ({other.compiler})")
    if not failed:
        print("\n".join(equal) or "no other build of these sources is here: nothing to compare with")
    return int(failed)


if __name__ == "__main__":
    sys.exit(compare(pathlib.Path(sys.argv[1]).resolve(), os.environ.get("SKEIN_TRACES_OF", "").split()))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a header is too long, or lacks its SPDX line, #pragma once or opening comment; prints the sizes."""
import statistics
import sys

import checks

LIMIT = 600


def main() -> int:
    allowed = {path for path, _ in checks.rules()["size_exceptions"]}
    problems, sizes = [], []
    for path, name, layer in checks.headers():
        lines = checks.read(path).splitlines()
        if layer is not None:
            sizes.append((len(lines), name))
        if len(lines) > LIMIT and name not in allowed:
            problems.append(f"{path}:{LIMIT}: {len(lines)} lines, the limit is {LIMIT}; split it by concept, or put machinery into detail/")
        if not lines or lines[0] != "// SPDX-License-Identifier: Apache-2.0":
            problems.append(f"{path}:1: the first line must be // SPDX-License-Identifier: Apache-2.0")
        if "#pragma once" not in lines[:30]:
            problems.append(f"{path}:2: no #pragma once near the top")
        comment = [line for line in lines[1:14] if line.startswith("//")]
        if not comment:
            problems.append(f"{path}:3: no opening comment: which problem, the idea, how to use it")
    sizes.sort()
    if not sizes:
        return checks.report(problems, "no headers")
    counts = [size for size, _ in sizes]
    text = (f"{len(counts)} headers: median {statistics.median(counts):.0f} lines, p90 {counts[int(len(counts) * 0.9)]}, "
            f"largest {counts[-1]} ({sizes[-1][1]}), {sum(counts)} in all")
    return checks.report(problems, text)


if __name__ == "__main__":
    sys.exit(main())

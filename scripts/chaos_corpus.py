# SPDX-License-Identifier: Apache-2.0
"""What the programs of scripts/chaos read, and what they have to print: counted without any of skein."""
import collections
import random
import re

FILES, BYTES_PER_FILE = 3, 3_000_000
PIECE = 1 << 15


def files(folder):
    return folder.glob("*.txt")


def make(folder, name, seed):
    """Files of words, few of them often and many rarely; and the output of 090_map_reduce for them."""
    rng = random.Random(f"{seed} {name}")
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 12))) for _ in range(3000)]
    words += [w.upper() for w in words[:100]]
    weights = [1 / (i + 1) for i in range(len(words))]
    paths, counts = [], collections.Counter()
    for i in range(FILES):
        text = " ".join(w + rng.choice(("", ".", ",\n", " 7")) for w in rng.choices(words, weights, k=BYTES_PER_FILE // 9))
        path = folder / f"{name}-{i}.txt"
        path.write_text(text)
        counts.update(re.findall("[a-z]+", text.lower()))
        paths.append(path)
    ranked = sorted(counts.items(), key=lambda c: (-c[1], c[0]))
    return paths, "".join(f"{n:8} {word}\n" for word, n in ranked)

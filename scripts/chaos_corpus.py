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


class Words:
    """090_map_reduce over files of words."""

    def __init__(self, folder, name, seed):
        self.files, self.wanted = make(folder, name, seed)
        self.environment, self.lost = {}, 0

    def command(self, find, address):
        return [find("090_map_reduce"), "--address", address, "--top", 1 << 20, "--piece", PIECE, *self.files]

    def wrong(self, code, out, err):
        """What is wrong with how a run ended, or nothing."""
        if code != 0:
            return f"ended with {code}: {err.splitlines()[-1:]}"
        return "" if out == self.wanted else "counted other words"


class Sort:
    """092_sort of lines; what a lost node had may be lost, and is then named."""

    def __init__(self, folder, name, seed):
        rng = random.Random(f"{seed} {name}")
        lines = [bytes(rng.choices(range(97, 123), k=rng.randint(10, 60))) + b"\n" for _ in range(120_000)]
        self.text, self.sorted = folder / f"{name}-text.txt", folder / f"{name}-sorted.txt"
        self.text.write_bytes(b"".join(lines))
        self.wanted = b"".join(sorted(lines))
        self.environment, self.lost = {"SKEIN_STORE": "64MiB"}, 0

    def command(self, find, address):
        return [find("092_sort"), "--address", address, self.text, self.sorted, 4]

    def wrong(self, code, _, err):
        if code != 0:
            is_lost = "it is not computed again" in err   # errc::object_lost
            self.lost += is_lost
            return "" if is_lost else f"ended with {code}: {err.splitlines()[-1:]}"
        return "" if self.sorted.read_bytes() == self.wanted else "sorted other lines"

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_fuzz.py PROGRAM CORPUS: replays the corpus, then fuzzes for a few seconds in a scratch folder.

SKEIN_FUZZ_SECONDS sets how long (default 5). A crash leaves its input in the scratch folder's place that
the message names.
"""
import os
import shutil
import subprocess
import sys
import tempfile


def main() -> int:
    program, corpus = sys.argv[1], sys.argv[2]
    if not os.path.isdir(corpus) or not os.listdir(corpus):
        print(f"no corpus: {corpus}")
        return 1
    scratch = tempfile.mkdtemp(prefix="skein-fuzz-")
    limits = ["-rss_limit_mb=1024", "-timeout=5", f"-artifact_prefix={scratch}/"]
    seeds = sorted(os.path.join(corpus, name) for name in os.listdir(corpus))
    replay = subprocess.run([program, *limits, *seeds], check=False)
    code = replay.returncode
    if code == 0:
        work = os.path.join(scratch, "corpus")
        os.mkdir(work)
        seconds = os.environ.get("SKEIN_FUZZ_SECONDS", "3")
        code = subprocess.run([program, *limits, f"-max_total_time={seconds}", "-print_final_stats=1", work, corpus], check=False).returncode
    if code != 0:
        print(f"failed; the input is under {scratch}")
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())

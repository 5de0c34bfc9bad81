#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three minutes of scripts/soak: memory, descriptors, threads and files stay. By hand for longer: scripts/soak 60.

    soak_test.py [MINUTES [PART...]]
"""
# label: train
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import find_program  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2]))


def main():
    for program in ("skein", "skein_soak", "120_gpt_fsdp", "300_elastic_mnist"):
        find_program(program)    # or the test is skipped
    done = subprocess.run([sys.executable, SOURCE / "scripts" / "soak.py", *(sys.argv[1:] or ["3"])], stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode == 0:
        assert json.loads(done.stdout.splitlines()[-1])["soak"]["parts"] >= 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

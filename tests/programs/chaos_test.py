#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small scripts/chaos: each kind of fault at least once, in twenty. The seed is fixed; what it hits depends on the moment.

    chaos_test.py [SEED]
"""
# label: runtime
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import find_program  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("SKEIN_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
FAULTS = 20


def main():
    for program in ("skein", "090_map_reduce"):
        find_program(program)    # or the test is skipped
    seed = sys.argv[1] if len(sys.argv) > 1 else "7"
    done = subprocess.run([sys.executable, SOURCE / "scripts" / "chaos.py", "--faults", str(FAULTS), "--seconds", "15", "--seed", seed],
                          stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode != 0:
        return done.returncode
    told = json.loads(done.stdout.splitlines()[-1])["chaos"]
    assert told["findings"] == 0 and told["faults"] + told["missed"] == FAULTS, told
    assert told["faults"] >= FAULTS // 2 and told["runs"] >= 4, f"too little has happened: {told}"
    return 0


if __name__ == "__main__":
    sys.exit(main())

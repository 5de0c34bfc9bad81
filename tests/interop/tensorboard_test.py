#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# label: runtime
"""Our event files are read by TensorBoard itself."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from program import find_program, skip  # noqa: E402

try:
    import tensorboard
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
except ImportError as missing:
    skip(f"{missing}; scripts/setup --test installs it")


def main():
    program = find_program("skein_interop_files")
    with tempfile.TemporaryDirectory(prefix="skein-interop-") as folder:
        subprocess.run([program, "write", folder], check=True)
        run = os.path.join(folder, "run")
        seen = EventAccumulator(run)
        seen.Reload()
        assert sorted(seen.Tags()["scalars"]) == ["loss", "tokens_per_s", "val_loss"], seen.Tags()
        losses = seen.Scalars("loss")
        assert [e.step for e in losses] == [1, 2, 3, 4, 5], losses
        assert all(abs(e.value - 4 / e.step) < 1e-6 for e in losses), losses
        assert [(e.step, e.value) for e in seen.Scalars("val_loss")] == [(2, 0.5), (4, 1.0)]
        assert losses[0].wall_time > 1e9

        # The raw records are whole Event messages: a version line, then one event per report.
        (path,) = [os.path.join(run, f) for f in os.listdir(run) if "tfevents" in f]
        events = [Event.FromString(record) for record in RawEventFileLoader(path).Load()]
        assert [e.step for e in events] == [0, 1, 2, 3, 4, 5], events
        assert events[0].file_version == "brain.Event:2"
    print(f"read by tensorboard {tensorboard.__version__}")


main()

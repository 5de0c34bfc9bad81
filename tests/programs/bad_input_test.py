#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in the hands of a person gets one clear line and the right exit code, and nothing hangs."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import TINY, Run, find_program, run_cases, write_text  # noqa: E402


def main():
    program, by_strategy = find_program("110_gpt_ddp"), find_program("120_gpt_fsdp")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = write_text(folder)
        (folder / "empty.txt").write_text("")
        (folder / "short.txt").write_text("too short")
        (folder / "file").write_text("a file, not a folder")
        pipe = folder / "pipe"
        os.mkfifo(pipe)

        def refused(code, words, *arguments, text_file=text, runs=folder / "runs", restarts=False, program=program):
            def case():
                with Run([program, *TINY, "--text", text_file, "--runs", runs, "--steps", 10, *arguments]) as run:
                    got = run.wait(120)
                    run.check(got == code, f"exit code {got}, not {code}")
                    said = run.stderr
                    for word in words:
                        run.check(word in said, f"'{word}' is not in the message")
                    # what a run says before it fails is no mistake
                    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(("gpt", "step ", "text ", "DDP", "FSDP", "memory"))]
                    run.check(len(lines) <= 3, f"{len(lines)} lines for one mistake")
                    run.check(restarts or "starting again" not in said, "a lasting failure was tried again")
                    run.check_nothing_left()
            return case

        def full_disk():
            if os.geteuid() != 0:
                print("        a full disk needs root for a small tmpfs: left out")
                return
            place = folder / "small"
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], check=True)
            try:
                refused(1, ["no space", str(place)], "--workers", "2", runs=place / "runs")()
            finally:
                subprocess.run(["umount", place], check=True)

        def unwritable():
            # root may write anywhere; a read-only mount stops it too.
            place = folder / "readonly"
            place.mkdir()
            if os.geteuid() != 0:
                place.chmod(0o500)
                refused(1, [str(place)], runs=place / "runs")()
                return
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,ro", "none", place], check=True)
            try:
                refused(1, [str(place)], "--workers", "2", runs=place / "runs")()
            finally:
                subprocess.run(["umount", place], check=True)

        def broken_checkpoints(workers):
            """With no whole one left a restart would find the same."""
            def case():
                runs = folder / f"broken-{workers}"
                with Run([program, *TINY, "--text", text, "--runs", runs, "--steps", 4, "--checkpoint-every", 2, "--workers", workers]) as run:
                    run.check(run.wait(120) == 0, "the first run failed")
                manifests = list(runs.glob("*/checkpoints/step-*/manifest.json"))
                assert len(manifests) == 2, manifests
                for manifest in manifests:
                    manifest.write_bytes(manifest.read_bytes()[:20])
                run_name = manifests[0].parents[2].name
                refused(1, ["no checkpoint in", "is whole", "another run name"], "--run", run_name, "--resume", "--workers", workers, runs=runs)()
            return case

        run_cases([
            ("every checkpoint broken, one process", broken_checkpoints(1)),
            ("every checkpoint broken, two workers", broken_checkpoints(2)),
            ("a pipe for a text", refused(2, ["neither a file nor a folder"], text_file=pipe)),
            ("no such text file", refused(2, ["nowhere.txt"], text_file=folder / "nowhere.txt")),
            ("empty file", refused(2, ["empty.txt"], text_file=folder / "empty.txt")),
            ("text shorter than the context", refused(2, ["short.txt"], text_file=folder / "short.txt")),
            ("0 workers", refused(2, ["scaling.workers = 0"], "--workers", "0")),
            ("-1 workers", refused(2, ["scaling.workers = -1"], "--workers", "-1")),
            ("more workers than samples", refused(2, ["workers", "batch"], "--workers", "9", "--batch", "8")),
            ("run folder below a file", refused(1, [str(folder / "file")], runs=folder / "file" / "runs")),
            ("unwritable run folder", unwritable),
            ("full disk", full_disk),
            ("no such communicator, one process", refused(2, ["pigeon", "shm"], "--communicator", "pigeon")),
            ("no such communicator, two workers", refused(2, ["pigeon", "shm"], "--communicator", "pigeon", "--workers", "2")),
            ("an empty prompt", refused(2, ["prompt"], "--prompt", "")),
            ("unknown flag", refused(2, ["--no-such-flag"], "--no-such-flag")),
            ("a word for a number", refused(2, ["--steps"], "--steps", "many")),
            ("NaN loss, one process", refused(1, ["at step", "learning rate"], "--lr", "1e30", "--sgd", "--warmup", "0", "--clip", "0", "--steps", "60")),
            ("NaN loss, two workers", refused(1, ["at step", "learning rate"], "--lr", "1e30", "--sgd", "--warmup", "0", "--clip", "0", "--steps", "60",
                                              "--workers", "2")),
            ("heads that do not divide the width", refused(2, ["heads"], "--heads", "5")),
            ("no such strategy", refused(2, ["nonsense", "fsdp"], "--strategy", "nonsense", "--workers", "2", program=by_strategy)),
            ("two workers and a strategy for one", refused(2, ["Single", "2 workers"], "--strategy", "single", "--workers", "2", program=by_strategy)),
            ("a state too large for the limit", refused(2, ["DDP needs", "memory_limit", "fsdp", "hybrid"], "--strategy", "ddp", "--memory-limit", "1",
                                                        "--dim", "128", "--workers", "2", program=by_strategy)),
            ("FSDP, more workers than samples", refused(2, ["workers", "batch"], "--workers", "9", program=by_strategy)),
            ("NaN loss under FSDP", refused(1, ["at step", "learning rate"], "--lr", "1e30", "--sgd", "--warmup", "0", "--clip", "0", "--steps", "60",
                                            "--workers", "2", program=by_strategy)),
        ], sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()

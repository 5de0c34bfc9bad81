#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project that adds skein's folder builds without warnings and without LibTorch, tests or examples."""
import os

import consume

with consume.scratch() as folder:
    options = [f"-DSKEIN_SOURCE={consume.SOURCE}", "-DSKEIN_TORCH=OFF", "-DLINK=runtime"]
    said = consume.configure_and_build(folder, *options, *consume.LIBRARY_FLAGS)
    assert "skein: SKEIN_TORCH=OFF: there is no skein::train" in said, said
    # The same project with the header-only form behind the same names.
    consume.configure_and_build(os.path.join(folder, "header_only"), *options, "-DSKEIN_COMPILED=OFF", "-DSKEIN_GCC12_WARNING=ON")
    # Without LibTorch the reason is one line, and the warning of old g++ can be turned off.
    again = consume.run(consume.CMAKE, folder, "-DSKEIN_TORCH=AUTO", "-DLIBTORCH=/no/such/folder", "-DSKEIN_GCC12_WARNING=OFF")
    assert "skein: no LibTorch, so there is no skein::train: no folder with" in again, again
    assert "destroys an aggregate" not in " ".join(again.split()), again

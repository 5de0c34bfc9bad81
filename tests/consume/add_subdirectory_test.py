#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project that adds skein's folder builds without warnings and without LibTorch, tests or examples."""
import consume

with consume.scratch() as folder:
    consume.configure_and_build(folder, f"-DSKEIN_SOURCE={consume.SOURCE}", "-DSKEIN_TORCH=OFF", "-DLINK=runtime")

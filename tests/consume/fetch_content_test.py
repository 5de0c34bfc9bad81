#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project gets skein by FetchContent from a clone on the same disk, with this tree's files in it."""
import os
import shutil

import consume

git = consume.tool("git")
with consume.scratch() as folder:
    clone = os.path.join(folder, "clone")
    os.mkdir(clone)
    for name in ("CMakeLists.txt", "LICENSE"):
        shutil.copy(os.path.join(consume.SOURCE, name), clone)
    for name in ("cmake", "include", "src", "scripts", "packaging"):
        shutil.copytree(os.path.join(consume.SOURCE, name), os.path.join(clone, name), ignore=shutil.ignore_patterns("__pycache__"))
    consume.run(git, "init", "-q", "-b", "work", clone)
    own = ["-C", clone, "-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    consume.run(git, *own, "add", "-A")
    consume.run(git, *own, "commit", "-q", "-m", "all")
    # A user would write a version's tag.
    consume.run(git, *own, "tag", "v0.1.0")
    consume.configure_and_build(os.path.join(folder, "build"), f"-DSKEIN_REPOSITORY=file://{clone}", "-DSKEIN_TAG=v0.1.0",
                                "-DSKEIN_TORCH=OFF", "-DLINK=header_only", "-DONE_FILE=ON")

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The torch-free part of skein: tasks, bytes, sockets, remote functions and actors, launching.
// Needs no LibTorch; link skein::runtime.
// Written by scripts/check_mirror.py --write.

#include <skein/cluster.hpp>
#include <skein/core.hpp>
#include <skein/goodput.hpp>
#include <skein/net.hpp>
#include <skein/objects.hpp>
#include <skein/proc.hpp>
#include <skein/program.hpp>
#include <skein/rt.hpp>
#include <skein/sched.hpp>
#include <skein/spmd.hpp>
#include <skein/wire.hpp>

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer program.
// Written by scripts/check_mirror.py --write.

#include <skein/program/cluster_roles.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/program/pending.hpp>
#include <skein/program/run.hpp>
#include <skein/program/run_options.hpp>
#include <skein/program/session.hpp>

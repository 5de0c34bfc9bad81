// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer proc.
// Written by scripts/check_mirror.py --write.

#include <skein/proc/boot.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/claims.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/leftovers.hpp>
#include <skein/proc/output.hpp>
#include <skein/proc/place_news.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/process_wait.hpp>
#include <skein/proc/shared_memory.hpp>
#include <skein/proc/standard_files.hpp>

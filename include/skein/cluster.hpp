// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer cluster.
// Written by scripts/check_mirror.py --write.

#include <skein/cluster/access.hpp>
#include <skein/cluster/digest_cache.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/cluster/leased_ranks.hpp>
#include <skein/cluster/page_forward.hpp>
#include <skein/cluster/results.hpp>
#include <skein/cluster/run_shelf.hpp>
#include <skein/cluster/run_store.hpp>

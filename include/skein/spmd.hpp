// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer spmd.
// Written by scripts/check_mirror.py --write.

#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/elastic_host.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/elastic_member.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <skein/spmd/elastic_world.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/host_share.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/leave_notices.hpp>
#include <skein/spmd/local_keeper.hpp>
#include <skein/spmd/loss_listeners.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/memory_register.hpp>
#include <skein/spmd/rank_entry.hpp>
#include <skein/spmd/rendezvous.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/silence_limit.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/spmd/view.hpp>
#include <skein/spmd/view_register.hpp>

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer cluster.
// Written by scripts/check_mirror.py --write.

#include <skein/cluster/access.hpp>
#include <skein/cluster/environment.hpp>
#include <skein/cluster/group.hpp>
#include <skein/cluster/joined_group.hpp>
#include <skein/cluster/loss_listeners.hpp>
#include <skein/cluster/meeting.hpp>
#include <skein/cluster/rendezvous.hpp>
#include <skein/cluster/settings.hpp>
#include <skein/cluster/supervisor.hpp>

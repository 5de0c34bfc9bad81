// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer sim.
// Written by scripts/check_mirror.py --write.

#include <skein/sim/children.hpp>
#include <skein/sim/device_model.hpp>
#include <skein/sim/disk.hpp>
#include <skein/sim/faults.hpp>
#include <skein/sim/host_loop.hpp>
#include <skein/sim/local_elastic.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

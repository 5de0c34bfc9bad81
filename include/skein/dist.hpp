// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer dist.
// Written by scripts/check_mirror.py --write.

#include <skein/dist/bootstrap.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/doorbell.hpp>
#include <skein/dist/group_memory.hpp>
#include <skein/dist/half.hpp>
#include <skein/dist/hierarchical.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/models.hpp>
#include <skein/dist/placement.hpp>
#include <skein/dist/reduce.hpp>
#include <skein/dist/ring.hpp>
#include <skein/dist/shared_memory.hpp>
#include <skein/dist/shm.hpp>
#include <skein/dist/split.hpp>
#include <skein/dist/stub.hpp>
#include <skein/dist/tag.hpp>

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer objects.
// Written by scripts/check_mirror.py --write.

#include <skein/objects/arena.hpp>
#include <skein/objects/far_objects.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/objects/object.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/peer_messages.hpp>
#include <skein/objects/spill.hpp>
#include <skein/objects/store.hpp>
#include <skein/objects/store_book.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/objects/store_messages.hpp>
#include <skein/objects/store_peers.hpp>
#include <skein/objects/store_reach.hpp>
#include <skein/objects/transfer.hpp>

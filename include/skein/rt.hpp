// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer rt.
// Written by scripts/check_mirror.py --write.

#include <skein/rt/actor.hpp>
#include <skein/rt/actor_options.hpp>
#include <skein/rt/actor_pool.hpp>
#include <skein/rt/failures.hpp>
#include <skein/rt/method_group.hpp>
#include <skein/rt/option_text.hpp>
#include <skein/rt/options.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/remote_error.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/runtime_context.hpp>
#include <skein/rt/runtime_options.hpp>
#include <skein/rt/stream.hpp>
#include <skein/rt/view.hpp>
#include <skein/rt/wait_refs.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/rt/worker_source.hpp>

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Communicators of parts of a world: the ranks of one host, the first ranks of all hosts, a row and
// a column of a grid.
//
//     auto local = split(world, world.rank() / 2, {.name = "local"});    // 0 1 | 2 3
//     auto cross = split(world, world.rank() % 2, {.name = "cross"});    // 0 2 | 1 3
//
// The whole world takes part in every split, in the same order; errors name ranks of the world.

#include <skein/dist/comm_thread.hpp>
#include <skein/dist/models.hpp>

#include <memory>

namespace skein::spmd {
class rendezvous;
}

namespace skein::dist {

/// The ranks that give the same color get one communicator among them, in the order of their ranks
/// in the world. Blocking, on the compute thread. A lost rank of the world, in the group or not,
/// aborts it.
///   color    negative: takes part, gets null
///   options  the same on all ranks; a model is chosen for each group; the name is used once in a
///            generation of the world
///   errors   those of make_communicator, on all ranks of the world if on one
[[nodiscard]] std::unique_ptr<comm_thread> split(spmd::rendezvous& world, int color,
                                                 comm_options options);

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/split.ipp>
#endif

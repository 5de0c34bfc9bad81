// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/context.hpp>.

#include <skein/core/check.hpp>

namespace skein::train {

SKEIN_INLINE context::context(world_info where, cluster::rendezvous* world, dist::comm_thread* comm)
    : where_(std::move(where)), world_(world), comm_(comm) {
    SKEIN_CHECK(where_.world_size >= 1, "world size {} < 1", where_.world_size);
    SKEIN_CHECK(where_.rank >= 0 && where_.rank < where_.world_size, "rank {} of {}", where_.rank,
                where_.world_size);
    SKEIN_CHECK(comm_ != nullptr || where_.world_size == 1,
                "a world of {} ranks needs a communicator", where_.world_size);
}

} // namespace skein::train

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/context.hpp>.

#include <skein/core/check.hpp>
#include <skein/dist/models.hpp>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE context::context(world_info where, cluster::rendezvous* world, dist::comm_thread* comm)
    : where_(std::move(where)), world_(world), comm_(comm) {
    SKEIN_CHECK(where_.world_size >= 1, "world size {} < 1", where_.world_size);
    SKEIN_CHECK(where_.rank >= 0 && where_.rank < where_.world_size, "rank {} of {}", where_.rank,
                where_.world_size);
    SKEIN_CHECK(comm_ != nullptr || where_.world_size == 1,
                "a world of {} ranks needs a communicator", where_.world_size);
}

SKEIN_INLINE void context::use_options(const dist::comm_options& options) {
    options_ = std::make_shared<const dist::comm_options>(options);
}

SKEIN_INLINE dist::comm_options context::group_options(const std::string& what) const {
    auto options = options_ ? *options_ : dist::comm_options{};
    options.name = fmt::format("{}-{}", what, groups_++);
    return options;
}

} // namespace skein::train

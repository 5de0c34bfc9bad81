// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the ranks of one host meet.

#include <skein/core/random.hpp>
#include <skein/net/address.hpp>
#include <skein/spmd/rank_places.hpp>

#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd::detail {

/// A name that no other group of this host has.
[[nodiscard]] inline net::address local_meeting(int attempt) {
    return net::address::abstract_unix(
        fmt::format("@skein-{}-{}-{:016x}", ::getpid(), attempt, system_random().next()));
}

[[nodiscard]] inline std::vector<rank_place> places_of_one_host(int ranks) {
    std::vector<rank_place> all;
    for (int r = 0; r < ranks; ++r) all.push_back({r, ranks});
    return all;
}

} // namespace skein::spmd::detail

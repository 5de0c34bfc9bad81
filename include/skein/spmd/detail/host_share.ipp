// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the hosts in their order.

#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>

#include <cstddef>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE host_share share_of(const std::vector<host_offer>& offers, int place) {
    constexpr int most_ranks = 4096; // of one host
    host_share mine;
    mine.place = place;
    mine.hosts = static_cast<int>(offers.size());
    mine.world_size = 0;
    for (std::size_t h = 0; h < offers.size(); ++h) {
        const auto& one = offers[h];
        if (one.ranks < 1 || one.ranks > most_ranks)
            throw error(errc::invalid_argument,
                        fmt::format("host {} has {} ranks", one.host, one.ranks));
        for (std::size_t before = 0; before < h; ++before)
            if (offers[before].host == one.host && offers[before].machine != one.machine)
                throw error(errc::mismatch,
                            fmt::format("two hosts of the job are called {}: the ranks of one "
                                        "would look for the other's at home",
                                        one.host))
                    .with_hint("give each a name by which the others reach it: --local-addr");
        if (static_cast<int>(h) == place) {
            mine.first_rank = mine.world_size;
            mine.ranks = one.ranks;
            mine.host = one.host;
        }
        mine.world_size += one.ranks;
        if (mine.job.empty()) mine.job = one.job;
    }
    mine.master_host = offers.front().host;
    mine.master_port = offers.front().master_port;
    return mine;
}

SKEIN_INLINE std::string text_of(const std::vector<host_offer>& offers) {
    std::vector<std::string> all;
    int first = 0;
    for (const auto& one : offers) {
        const int last = first + one.ranks - 1;
        all.push_back(first == last ? fmt::format("{} has rank {}", one.host, first)
                                    : fmt::format("{} has ranks {} to {}", one.host, first, last));
        first = last + 1;
    }
    return joined(all, ", ");
}

} // namespace skein::spmd

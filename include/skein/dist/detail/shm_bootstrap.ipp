// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the ranks of one host come to share a segment, over the rendezvous of the whole world.

#include <skein/core/check.hpp>
#include <skein/dist/shm.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::dist::detail {

/// Every rank of the world calls it; members are the world ranks of this rank's host, ascending.
/// labels: what errors call them. Two exchanges: where the first member's segment is, then who has
/// it. A failure of one rank is the error of all of them.
[[nodiscard]] SKEIN_INLINE std::unique_ptr<shm_communicator> share_segment(
    spmd::rendezvous& world, const std::string& key, const std::vector<int>& members,
    std::vector<int> labels, shm_options pieces, collective_options limits) {
    const int size = static_cast<int>(members.size());
    const auto own = std::find(members.begin(), members.end(), world.rank());
    SKEIN_CHECK(own != members.end(), "rank {} is not a member of its host", world.rank());
    const int mine = static_cast<int>(own - members.begin());

    const std::size_t bytes = shm_communicator::segment_bytes(size, pieces);
    shared_memory segment;
    std::optional<error> failure;
    std::string path;
    try {
        if (mine == 0 && size > 1) {
            segment = shared_memory::create(bytes);
            path = segment.path();
        }
    } catch (const error& e) {
        failure = e;
    }
    const auto paths = world.exchange(key + "/segment", as_bytes(path));

    std::unique_ptr<shm_communicator> comm;
    try {
        if (mine > 0) {
            const std::string from = skein::to_string(paths[static_cast<std::size_t>(members[0])]);
            if (from.empty())
                throw error(errc::io, "the first rank of this host made no shared segment");
            segment = shared_memory::attach(from, bytes);
        }
        if (size > 1 && !failure) {
            comm = std::make_unique<shm_communicator>(std::move(segment), mine, size,
                                                      std::move(labels), pieces, limits);
        }
    } catch (const error& e) {
        failure = e;
    }
    const auto done = world.exchange(key + "/attached",
                                     as_bytes(std::string_view(failure ? failure->what() : "")));
    if (failure) throw *failure;
    for (std::size_t r = 0; r < done.size(); ++r) {
        if (!done[r].empty()) {
            throw error(errc::io, fmt::format("rank {} cannot share memory: {}", r,
                                              skein::to_string(done[r])));
        }
    }
    if (comm) comm->join();
    return comm;
}

} // namespace skein::dist::detail

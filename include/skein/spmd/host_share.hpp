// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of one host among those of all hosts of a world.
//
//     const auto mine = share_of(offers, 1);       // of what all hosts have said, in their order
//     mine.first_rank;                             // 2, where the host before has 2 ranks
//     mine.master_host, mine.master_port;          // where rank 0 can listen

#include <skein/core/config.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::spmd {

/// What a host says of itself when a world of hosts begins.
struct host_offer {
    std::string host{};    ///< as the others reach it
    std::string machine{}; ///< another one on each: two may bear one name by mistake
    std::string job{};     ///< of the worlds that it was in; empty: this is its first one
    std::int32_t ranks = 1;
    std::int32_t master_port = 0; ///< of this host; nobody listens there. 0: none is free
};

/// One host's part of a world.
struct host_share {
    int place = 0; ///< of the host, among `hosts`: GROUP_RANK
    int hosts = 1;
    int first_rank = 0; ///< of this host
    int ranks = 1;      ///< of this host
    int world_size = 1;
    std::string host{};        ///< this one, in messages
    std::string master_host{}; ///< that of rank 0
    int master_port = 0;       ///< there
    int attempt = 0;           ///< another one at each start, from 0
    int restarts = 0;          ///< of the job so far that count
    /// The same on all hosts and in all worlds, and that of no other job: runs are known by it.
    std::string job{};
    net::address group{}; ///< where ranks that train meet: the first host serves it
    net::token secret{};  ///< of that group
};

/// That of the host at this place; `job` as the first host says that has one.
///   errors  mismatch: two machines under one name; invalid_argument: an offer that cannot be
[[nodiscard]] host_share share_of(const std::vector<host_offer>& offers, int place);

/// "a has ranks 0 to 1, b rank 2"
[[nodiscard]] std::string text_of(const std::vector<host_offer>& offers);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/host_share.ipp>
#endif

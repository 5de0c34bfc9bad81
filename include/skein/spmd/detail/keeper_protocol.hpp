// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the supervisors of an elastic job say to its coordinator and hear from it: messages over
// net::requests, in order.

#include <skein/core/error.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::spmd::detail {

/// The first of a supervisor: answered by keeper_welcome, or why its host has no part in the job.
struct keeper_hello {
    static constexpr std::uint16_t number = 0x0301;
    std::uint64_t id = 0;
    std::string host;
    std::string job; ///< as the user calls it
    std::int32_t places = 0;
    std::int32_t least = 0, most = 0; ///< workers of the job, as this host was told
    std::vector<view_member> running; ///< since another coordinator's time
    view newest;                      ///< that this host knows of
};
struct keeper_started {
    static constexpr std::uint16_t number = 0x0302;
    std::uint64_t worker = 0;
    std::int64_t pid = 0;
};
/// A message of a worker, or for one.
struct keeper_frame {
    static constexpr std::uint16_t number = 0x0303;
    std::uint64_t worker = 0;
    std::uint16_t kind = 0;
    byte_buffer body;
};
struct keeper_ended {
    static constexpr std::uint16_t number = 0x0304;
    std::uint64_t worker = 0;
    worker_end how;
};
/// Of a tool, instead of hello; answered by what holds then.
struct keeper_scale {
    static constexpr std::uint16_t number = 0x0306;
    std::string job;
    std::int32_t target = 0, least = 0, most = 0;
};
struct keeper_welcome {
    static constexpr std::uint16_t number = 0x0381;
    std::vector<std::uint64_t> kept; ///< workers that go on; the others are killed
    bool is_spare = false;           ///< the job has places enough without this host
};
/// Of the coordinator, as all below.
struct keeper_start {
    static constexpr std::uint16_t number = 0x0382;
    std::uint64_t worker = 0;
};
struct keeper_kill {
    static constexpr std::uint16_t number = 0x0383;
    std::uint64_t worker = 0;
};
/// The job, or this host's part of it: in order, or why not; and the signal that has stopped it.
struct keeper_over {
    static constexpr std::uint16_t number = 0x0385;
    bool in_order = false;
    std::int32_t signal = 0; ///< or 0
    error why{errc::unknown, ""};
};

/// Of one message: one for a worker, and what goes around it.
inline constexpr std::size_t most_keeper_message = most_member_message + (std::size_t{32} << 10);

} // namespace skein::spmd::detail

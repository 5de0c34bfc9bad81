// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the supervisors of an elastic job say to its coordinator and hear from it; frames of one
// connection whose bodies are wire-encoded.

#include <skein/core/error.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace skein::spmd::detail {

/// Kinds of frames; of a supervisor unless said.
namespace keeper_kind {
inline constexpr std::uint16_t hello = 0x0301;   ///< keeper_hello; the first frame
inline constexpr std::uint16_t started = 0x0302; ///< keeper_started
inline constexpr std::uint16_t said = 0x0303;    ///< keeper_frame: of a worker
inline constexpr std::uint16_t ended = 0x0304;   ///< keeper_ended
inline constexpr std::uint16_t leaves = 0x0305;  ///< member_leave: its host is told to go
inline constexpr std::uint16_t scale = 0x0306;   ///< keeper_scale: of a tool, instead of hello
inline constexpr std::uint16_t welcome = 0x0381; ///< of the coordinator: keeper_welcome
inline constexpr std::uint16_t start = 0x0382;   ///< of the coordinator: keeper_order
inline constexpr std::uint16_t kill = 0x0383;    ///< of the coordinator: keeper_order
inline constexpr std::uint16_t tell = 0x0384;    ///< of the coordinator: keeper_frame
inline constexpr std::uint16_t over = 0x0385;    ///< of the coordinator: keeper_over
inline constexpr std::uint16_t scaled = 0x0387;  ///< of the coordinator: keeper_scale
} // namespace keeper_kind

struct keeper_hello {
    std::uint64_t id = 0;
    std::string host;
    std::string job; ///< as the user calls it
    std::int32_t places = 0;
    std::int32_t least = 0, most = 0; ///< workers of the job, as this host was told
    std::vector<view_member> running; ///< since another coordinator's time
    view newest;                      ///< that this host knows of
};
struct keeper_started {
    std::uint64_t worker = 0;
    std::int64_t pid = 0;
};
struct keeper_frame {
    std::uint64_t worker = 0;
    std::uint16_t kind = 0;
    byte_buffer body;
};
struct keeper_ended {
    std::uint64_t worker = 0;
    std::int32_t code = -1, signal = 0;
    std::string how, last_words;
    bool was_silent = false;
    std::vector<result<bool>> not_started; ///< none, or one error
};
struct keeper_scale {
    std::string job;
    std::int32_t target = 0, least = 0, most = 0;
};
struct keeper_welcome {
    std::string job;                 ///< of the attempt
    std::vector<std::uint64_t> kept; ///< workers that go on; the others are killed
    bool is_spare = false;           ///< the job has places enough without this host
};
struct keeper_order {
    std::uint64_t worker = 0;
};
/// In order, or why not; and the signal that has stopped the job, or 0.
using keeper_over = std::tuple<bool, std::int32_t, error>;

/// Of one frame: one for a worker, and what goes around it.
inline constexpr std::size_t most_keeper_frame = most_member_frame + (std::size_t{1} << 16);

} // namespace skein::spmd::detail

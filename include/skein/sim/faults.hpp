// SPDX-License-Identifier: Apache-2.0
#pragma once
// What goes wrong in a simulated world, and how often. Drawn per seed ("swarm": each seed has its
// own mix, one in five has none), so that rare combinations are met and false alarms are seen.

#include <skein/core/random.hpp>
#include <skein/core/time.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace skein::sim {

/// Kinds of faults that are counted.
enum class fault : std::uint8_t {
    delay,        ///< a chunk came much later than usual
    partial_read, ///< fewer bytes than were there
    partial_write,
    connect_refused, ///< although somebody listens
    reset,           ///< a stream broke
    block,           ///< one direction between two hosts went silent
    partition,       ///< both directions
    heal,
    crash, ///< a host went away
    disk_io,
    disk_full,
    disk_lost,    ///< unsynced data gone at a crash
    disk_torn,    ///< half a write survived a crash
    kill,         ///< a process ended without a word
    pause,        ///< a process stood still for a while
    slow_start,   ///< a process took long to load its program
    start_failed, ///< a process was not started at all
    start_hung,   ///< nobody knows whether it will be
    bit_flip,     ///< one bit of a chunk came wrong
    stale,        ///< a late or doubled connection of the past came
    disk_rot,     ///< a bit of a file at rest changed
    drift,        ///< a host whose clock runs at a rate of its own
    clock_jump,   ///< somebody set a host's wall clock
};
/// How many kinds of faults there are.
inline constexpr std::size_t fault_kinds = 23;

/// The name of a fault, e.g. "partial_read".
[[nodiscard]] constexpr std::string_view to_string(fault f) noexcept {
    constexpr std::array<std::string_view, fault_kinds> names = {
        "delay",        "partial_read", "partial_write", "connect_refused",
        "reset",        "block",        "partition",     "heal",
        "crash",        "disk_io",      "disk_full",     "disk_lost",
        "disk_torn",    "kill",         "pause",         "slow_start",
        "start_failed", "start_hung",   "bit_flip",      "stale",
        "disk_rot",     "drift",        "clock_jump"};
    return names[static_cast<std::size_t>(f)];
}

/// Counts by kind.
struct fault_counts {
    std::array<std::uint64_t, fault_kinds> by_kind{};
    void add(fault f) noexcept { ++by_kind[static_cast<std::size_t>(f)]; }
    [[nodiscard]] std::uint64_t of(fault f) const noexcept {
        return by_kind[static_cast<std::size_t>(f)];
    }
    [[nodiscard]] std::uint64_t total() const noexcept {
        std::uint64_t n = 0;
        for (const auto k : by_kind) n += k;
        return n;
    }
};

/// Rates; all zero = a perfect world with ordinary delays.
struct faults {
    time_span least_delay = std::chrono::microseconds(20);
    time_span most_delay = std::chrono::microseconds(500);
    double slow_chunk = 0; ///< of chunks: come up to `slow_delay` later
    time_span slow_delay = std::chrono::milliseconds(50);
    double partial_read = 0;  ///< of reads
    double partial_write = 0; ///< of writes
    double refuse = 0;        ///< of connects
    double reset = 0;         ///< of writes: the stream breaks
    double flip = 0;    ///< of chunks between hosts: one bit comes wrong; never inside of a host
    double disk_io = 0; ///< of disk calls: EIO
    std::size_t window = std::size_t{256} << 10; ///< bytes under way per direction
    /// Between two random events on the links (block, partition, heal); zero = none by themselves.
    time_span link_fault_every{};
    time_span link_fault_lasts = std::chrono::seconds(2);

    /// A mix drawn from `random`. Resets, flipped bits and link faults are drawn too if `harsh`.
    static faults draw(random_source& random, bool harsh = true);
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/faults.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What lies in the segment of a shm_communicator, and who writes what.
//
//     head | rank_block[N] | per rank: small[2] in[2] out[2] | pair_block[N*N] | pair data[N*N][2]
//
// Everything starts as zero bytes. A rank writes only its own block and slots; the abort record is
// written once by whoever wins the exchange on head::aborted. Pages that are never used cost
// nothing.

#include <skein/dist/detail/collective_signature.hpp>
#include <skein/dist/doorbell.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace skein::dist {

/// Sizes of the pieces in which data passes through shared memory.
struct shm_options {
    /// One slot of one rank; two are in flight. Larger than the second cache of a core on purpose:
    /// bytes that the writer's cache has handed down to the shared one arrive twice as fast as
    /// dirty ones (measured on an EPYC: 8 MiB in 0.65 ms with 1 MiB, 1.4 ms with 256 KiB).
    std::size_t chunk_bytes = std::size_t{1} << 20;
    /// Up to here: one exchange, all reduce all. With more than two ranks less, as each reads what
    /// all bring: 2 / N of it, but not below 8 KiB.
    std::size_t small_bytes = std::size_t{64} << 10;
    std::size_t message_bytes = std::size_t{64} << 10; ///< one slot of send/recv
    std::uint32_t first_step = 0; ///< where the counters of steps begin; they wrap around
};

namespace detail {

/// Counters of steps only grow and wrap around; "at least" is a signed distance.
[[nodiscard]] inline bool at_least(std::uint32_t have, std::uint32_t want) noexcept {
    return static_cast<std::int32_t>(have - want) >= 0;
}

struct alignas(128) shm_head {
    std::atomic<std::uint32_t> aborted; ///< 0 no, 1 being written, 2 the error is there
    std::uint32_t error_bytes;
    std::byte error[4096]; ///< detail::abort_body
};

struct alignas(128) shm_rank {
    doorbell bell;
    // Written by the owner, read by all; one cache line travels per step.
    alignas(128) std::atomic<std::uint32_t> arrived; ///< collectives entered
    std::atomic<std::uint32_t> published;            ///< steps whose `in` slot is full
    std::atomic<std::uint32_t>
        reduced; ///< steps in which it has read all `in` slots, `out` is full
    std::atomic<std::uint32_t> fetched; ///< steps in which it has read all `out` slots
    std::atomic<std::int32_t> pid;      ///< 0 until it has joined
    std::atomic<std::uint32_t> left;    ///< 1 after an orderly close
    std::atomic<std::int32_t> core;     ///< 1 + that on which it last did a step, 0 unknown
    alignas(128) signature doing[2];    ///< by parity of the sequence; valid once arrived says so
};

/// One direction between two ranks.
struct alignas(128) shm_pair {
    std::atomic<std::uint32_t> sent; ///< pieces in the slots, by the sender
    std::uint64_t count[2];          ///< of the message the piece belongs to
    dtype type[2];
    alignas(128) std::atomic<std::uint32_t> received; ///< pieces taken, by the receiver
};

static_assert(std::is_trivially_copyable_v<signature>);

/// Where things are, for a number of ranks and a set of options.
class shm_layout {
public:
    shm_layout(int ranks, shm_options o);

    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_; }
    [[nodiscard]] std::size_t small_bytes() const noexcept { return small_; }
    [[nodiscard]] std::size_t message_bytes() const noexcept { return message_; }

    static shm_head& head(std::byte* m) noexcept { return *reinterpret_cast<shm_head*>(m); }
    static shm_rank& rank(std::byte* m, int r) noexcept {
        return reinterpret_cast<shm_rank*>(m + sizeof(shm_head))[r];
    }
    std::byte* small(std::byte* m, int r, std::uint32_t parity) const noexcept {
        return slots(m, r) + (parity & 1) * small_;
    }
    std::byte* in(std::byte* m, int r, std::uint32_t parity) const noexcept {
        return slots(m, r) + 2 * small_ + (parity & 1) * chunk_;
    }
    std::byte* out(std::byte* m, int r, std::uint32_t parity) const noexcept {
        return slots(m, r) + 2 * small_ + (2 + (parity & 1)) * chunk_;
    }
    shm_pair& pair(std::byte* m, int from, int to) const noexcept {
        return reinterpret_cast<shm_pair*>(m + pairs_at_)[index(from, to)];
    }
    std::byte* message(std::byte* m, int from, int to, std::uint32_t parity) const noexcept {
        return m + messages_at_ + (2 * index(from, to) + (parity & 1)) * message_;
    }

private:
    static std::size_t small_for(int ranks, std::size_t of_two) noexcept;
    static constexpr std::size_t round_up(std::size_t n, std::size_t to) noexcept {
        return (n + to - 1) / to * to;
    }
    std::byte* slots(std::byte* m, int r) const noexcept {
        return m + slots_at_ + static_cast<std::size_t>(r) * per_rank_;
    }
    std::size_t index(int from, int to) const noexcept {
        return static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
    }

    std::size_t ranks_, chunk_, small_, message_;
    std::size_t slots_at_ = 0, per_rank_ = 0, pairs_at_ = 0, messages_at_ = 0, bytes_ = 0;
};

} // namespace detail
} // namespace skein::dist

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank says it is doing, so that two ranks doing different things get an error, not garbage.

#include <skein/core/error.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/tag.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::dist::detail {

enum class op_kind : std::uint8_t {
    none = 0,
    all_reduce = 1,
    reduce_scatter = 2,
    all_gather = 3,
    all_gather_v = 4,
    broadcast = 5,
    barrier = 6,
    message = 7,
    reduce = 8,
    reduce_scatter_v = 9,
    allocate = 10,
};

[[nodiscard]] constexpr std::string_view to_string(op_kind kind) noexcept {
    switch (kind) {
    case op_kind::none: return "nothing";
    case op_kind::all_reduce: return "all_reduce";
    case op_kind::reduce_scatter: return "reduce_scatter";
    case op_kind::all_gather: return "all_gather";
    case op_kind::all_gather_v: return "all_gather_v";
    case op_kind::broadcast: return "broadcast";
    case op_kind::barrier: return "barrier";
    case op_kind::message: return "send/recv";
    case op_kind::reduce: return "reduce";
    case op_kind::reduce_scatter_v: return "reduce_scatter_v";
    case op_kind::allocate: return "allocate";
    }
    return "?";
}

/// The part of a collective call that must be the same on every rank. Trivially copyable: it lies
/// in shared memory and in frame headers.
struct signature {
    std::uint64_t sequence = 0; ///< counts the collectives of this communicator, from 1
    std::uint64_t count = 0;    ///< elements (of uneven parts: the total)
    std::uint64_t detail = 0;   ///< root, or a hash of the counts
    std::uint64_t tag = 0;      ///< collective_tag::pack()
    std::uint64_t memory = 0;   ///< memory_place::word(), inside a host; 0: memory of the caller
    op_kind kind = op_kind::none;
    dtype type = dtype::f32;
    reduce_op op = reduce_op::sum;
    op_kind outer = op_kind::none; ///< what it is a part of (hierarchical)
    dtype into = dtype::f32;       ///< of the result; mostly `type`
    std::uint8_t unused[3] = {};

    friend bool operator==(const signature&, const signature&) = default;
};

/// "all_reduce #7 (f32 x 100, sum)", "reduce_scatter_v #8 (bf16 x 100 into f32, sum, ...)"; with a
/// tag ", reduce of unit 3 at step 12" behind it.
[[nodiscard]] std::string describe(const signature& s);
[[nodiscard]] error mismatch_error(int rank_a, const signature& a, int rank_b, const signature& b);
/// What the others learn when `rank` got no memory.
[[nodiscard]] error no_memory(int rank, const signature& what, const error& why);
/// The error of a group as one rank throws it: with where that rank is, cause and hint kept.
[[nodiscard]] error error_at(const error& why, std::string where);
/// Where each part begins when they lie one after the other.
[[nodiscard]] std::vector<std::size_t> starts_of(std::span<const std::size_t> counts);
[[nodiscard]] std::uint64_t hash_counts(std::span<const std::size_t> counts) noexcept;

} // namespace skein::dist::detail

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/collective_signature.ipp>
#endif

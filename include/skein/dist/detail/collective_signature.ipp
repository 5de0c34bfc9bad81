// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signatures of collectives in words, for errors.

#include <skein/core/fnv.hpp>

#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE std::string describe_untagged(const signature& s) {
    if (s.kind == op_kind::none) return "no collective";
    if (s.kind == op_kind::barrier) return fmt::format("barrier #{}", s.sequence);
    if (s.kind == op_kind::allocate) {
        return fmt::format("allocate #{} ({} bytes, {})", s.sequence, s.count,
                           s.detail == 0 ? "own" : "common");
    }
    std::string more;
    if (s.kind == op_kind::all_reduce || s.kind == op_kind::reduce_scatter ||
        s.kind == op_kind::reduce || s.kind == op_kind::reduce_scatter_v) {
        more = fmt::format(", {}", to_string(s.op));
    }
    if (s.kind == op_kind::broadcast || s.kind == op_kind::reduce) {
        more += fmt::format(", root {}", s.detail);
    }
    if (s.kind == op_kind::all_gather_v || s.kind == op_kind::reduce_scatter_v)
        more += fmt::format(", counts {:08x}", s.detail & 0xffffffffu);
    if (s.memory != 0) {
        more += fmt::format(", {} byte {} of memory {}", (s.memory >> 47 & 1) != 0 ? "from" : "at",
                            s.memory & 0x7fffffffffffu, s.memory >> 48);
    }
    if (s.outer != op_kind::none && s.outer != s.kind)
        more += fmt::format(", for {}", to_string(s.outer));
    const auto into = s.into == s.type ? "" : fmt::format(" into {}", to_string(s.into));
    return fmt::format("{} #{} ({} x {}{}{})", to_string(s.kind), s.sequence, to_string(s.type),
                       s.count, into, more);
}

SKEIN_INLINE std::string describe(const signature& s) {
    const std::string call = describe_untagged(s);
    return s.tag == 0 ? call : call + ", " + to_string(collective_tag::unpack(s.tag));
}

SKEIN_INLINE error mismatch_error(int rank_a, const signature& a, int rank_b, const signature& b) {
    return error(errc::mismatch, fmt::format("ranks do not agree: rank {} is in {}, rank {} in {}",
                                             rank_a, describe(a), rank_b, describe(b)))
        .with_hint("every rank must call the same collectives with the same counts and tags in the "
                   "same order");
}

SKEIN_INLINE error no_memory(int rank, const signature& what, const error& why) {
    return error(why.code(),
                 fmt::format("rank {} failed in {}: {}", rank, describe(what), why.text()))
        .with_cause(why.cause())
        .with_hint(why.hint());
}

SKEIN_INLINE error error_at(const error& why, std::string where) {
    std::string text = why.where().empty() ? why.text() : why.where() + ": " + why.text();
    return error(why.code(), std::move(text))
        .with_where(std::move(where))
        .with_cause(why.cause())
        .with_hint(why.hint());
}

SKEIN_INLINE std::vector<std::size_t> starts_of(std::span<const std::size_t> counts) {
    std::vector<std::size_t> starts(counts.size());
    for (std::size_t p = 1; p < counts.size(); ++p) starts[p] = starts[p - 1] + counts[p - 1];
    return starts;
}

SKEIN_INLINE std::uint64_t hash_counts(std::span<const std::size_t> counts) noexcept {
    fnv1a h;
    for (const std::size_t c : counts) h.number(c);
    return h.value();
}

} // namespace skein::dist::detail

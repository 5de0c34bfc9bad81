// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checks of collectives, once for all models.

#include <skein/core/check.hpp>

#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE void require_host(buffer_view view) {
    if (view.where.is_cpu()) return;
    throw error(
        errc::not_supported,
        fmt::format("not supported: this communicator works in the host's memory, the buffer "
                    "is on {}",
                    to_string(view.where)))
        .with_hint("copy it to the host, or choose a communicator for that device");
}

SKEIN_INLINE signature call_of(op_kind kind, buffer_view of, reduce_op op = reduce_op::sum) {
    require_host(of);
    signature s;
    s.kind = kind;
    s.count = of.count;
    s.type = s.into = of.type;
    s.op = op;
    return s;
}

SKEIN_INLINE signature all_reduce_call(buffer_view io, reduce_op op) {
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    return call_of(op_kind::all_reduce, io, op);
}

SKEIN_INLINE signature reduce_scatter_call(buffer_view in, buffer_view out, reduce_op op,
                                           int ranks) {
    SKEIN_CHECK(in.type == out.type && in.type != dtype::u8 &&
                    in.count == out.count * static_cast<std::size_t>(ranks),
                "reduce_scatter of {} elements into {} on {} ranks", in.count, out.count, ranks);
    require_host(out);
    return call_of(op_kind::reduce_scatter, in, op);
}

SKEIN_INLINE signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                             reduce_op op, int ranks) {
    std::size_t total = 0;
    for (const std::size_t c : counts) total += c;
    SKEIN_CHECK(counts.size() == static_cast<std::size_t>(ranks) && io.type != dtype::u8 &&
                    io.count == total,
                "reduce_scatter_v: {} counts for {} ranks, they add up to {}, io has {} x {}",
                counts.size(), ranks, total, to_string(io.type), io.count);
    signature s = call_of(op_kind::reduce_scatter_v, io, op);
    s.detail = hash_counts(counts);
    return s;
}

SKEIN_INLINE signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                             buffer_view out, reduce_op op, int rank, int ranks) {
    signature s = reduce_scatter_v_call(io, counts, op, ranks);
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    SKEIN_CHECK((is_half(io.type) || io.type == dtype::f32) && out.type == dtype::f32 &&
                    out.count == own,
                "reduce_scatter_v of {} into {} x {}, the own part has {}", to_string(io.type),
                to_string(out.type), out.count, own);
    require_host(out);
    s.into = out.type;
    return s;
}

SKEIN_INLINE signature all_gather_call(buffer_view in, buffer_view out, int ranks) {
    SKEIN_CHECK(in.type == out.type && out.count == in.count * static_cast<std::size_t>(ranks),
                "all_gather of {} elements into {} on {} ranks", in.count, out.count, ranks);
    require_host(in);
    return call_of(op_kind::all_gather, out);
}

SKEIN_INLINE signature all_gather_v_call(buffer_view in, buffer_view out,
                                         std::span<const std::size_t> counts, int rank, int ranks) {
    SKEIN_CHECK(counts.size() == static_cast<std::size_t>(ranks) && in.type == out.type &&
                    in.count == counts[static_cast<std::size_t>(rank)],
                "all_gather_v: {} counts for {} ranks, own part {}", counts.size(), ranks,
                in.count);
    std::size_t total = 0;
    for (const std::size_t c : counts) total += c;
    SKEIN_CHECK(out.count == total, "all_gather_v: counts add up to {}, out has {}", total,
                out.count);
    require_host(in);
    signature s = call_of(op_kind::all_gather_v, out);
    s.detail = hash_counts(counts);
    return s;
}

SKEIN_INLINE signature broadcast_call(buffer_view io, int root, int ranks) {
    SKEIN_CHECK(root >= 0 && root < ranks, "broadcast from rank {} of {}", root, ranks);
    signature s = call_of(op_kind::broadcast, io);
    s.detail = static_cast<std::uint64_t>(root);
    return s;
}

SKEIN_INLINE signature barrier_call() {
    signature s;
    s.kind = op_kind::barrier;
    s.type = s.into = dtype::u8;
    return s;
}

SKEIN_INLINE signature allocate_call(std::size_t bytes, memory_kind kind) {
    SKEIN_CHECK(bytes > 0, "memory of {} bytes", bytes);
    signature s;
    s.kind = op_kind::allocate;
    s.type = s.into = dtype::u8;
    s.count = bytes;
    s.detail = static_cast<std::uint64_t>(kind);
    return s;
}

SKEIN_INLINE signature message_call(buffer_view io, int peer, int rank, int ranks) {
    SKEIN_CHECK(peer >= 0 && peer < ranks && peer != rank,
                "send or recv of rank {} with rank {} of {}", rank, peer, ranks);
    signature s = call_of(op_kind::message, io);
    s.detail = static_cast<std::uint64_t>(peer);
    return s;
}

} // namespace skein::dist::detail

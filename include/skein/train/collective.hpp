// SPDX-License-Identifier: Apache-2.0
#pragma once
// The few blocking exchanges that training needs besides gradients, the same for one rank and many.
//
// All are collective: every rank calls them in the same order. In a world of one they cost nothing.
//
//     auto merged = merge(ctx, metrics);               // every metric of every rank, reduced by kind
//     require_same(ctx, hash, "the model");            // errc::mismatch names the odd rank

#include <skein/core/bytes.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/context.hpp>
#include <skein/train/metrics.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace skein::train {

/// In place over all ranks.
inline void all_reduce(const context& ctx, std::span<double> values, dist::reduce_op op) {
    if (ctx.world_size() == 1 || values.empty()) return;
    ctx.comm()->all_reduce(dist::view_of(values), op).wait();
}

/// The bytes of every rank, in rank order.
[[nodiscard]] inline std::vector<byte_buffer> gather_bytes(const context& ctx, byte_span mine) {
    const auto world = static_cast<std::size_t>(ctx.world_size());
    std::vector<byte_buffer> all(world);
    if (world == 1) {
        all[0].assign(mine.begin(), mine.end());
        return all;
    }
    auto my_size = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(world);
    ctx.comm()
        ->all_gather(dist::view_of(std::span(&my_size, 1)), dist::view_of(std::span(sizes)))
        .wait();

    std::vector<std::size_t> counts(sizes.begin(), sizes.end());
    std::size_t total = 0;
    for (auto n : counts) total += n;
    if (total == 0) return all;
    byte_buffer joined(total);
    ctx.comm()->all_gather_v(dist::view_of(mine), dist::view_of(std::span(joined)), counts).wait();
    const auto* from = joined.data();
    for (std::size_t r = 0; r < world; ++r) {
        all[r].assign(from, from + counts[r]);
        from += counts[r];
    }
    return all;
}

/// Rank 0's text on every rank.
[[nodiscard]] inline std::string from_first(const context& ctx, const std::string& text) {
    const auto all = gather_bytes(ctx, ctx.is_first() ? as_bytes(text) : byte_span{});
    return std::string(as_text(all[0]));
}

/// Throws errc::mismatch on every rank, naming the first rank that differs from rank 0.
inline void require_same(const context& ctx, std::uint64_t hash, std::string_view what) {
    byte_buffer mine(sizeof hash);
    std::memcpy(mine.data(), &hash, sizeof hash);
    const auto all = gather_bytes(ctx, mine);
    for (std::size_t r = 1; r < all.size(); ++r)
        if (all[r] != all[0])
            throw error(errc::mismatch,
                        fmt::format("{} of rank {} differs from that of rank 0", what, r))
                .with_hint("build it from the same options on every rank");
}

/// The metrics of all ranks, reduced by kind; the same values on every rank.
[[nodiscard]] inline std::vector<metric_value> merge(const context& ctx, const metric_set& mine) {
    if (ctx.world_size() == 1) return mine.values();
    auto packed = mine.pack(ctx.rank());
    auto sums = ctx.comm()->all_reduce(dist::view_of(std::span(packed.sums)), dist::reduce_op::sum);
    auto maxima =
        ctx.comm()->all_reduce(dist::view_of(std::span(packed.maxima)), dist::reduce_op::max);
    try {
        sums.wait();
        maxima.wait();
    } catch (...) {
        ctx.comm()->drain(); // both work on `packed`
        throw;
    }
    return mine.unpack(packed).value();
}

/// For the checkpointer: its exchange over this context. The context must outlive it.
///   usual  the deadline that other collectives have. Around an exchange ranks read, verify and sync
///          whole checkpoints, which takes minutes on a slow disk: there it is at least 30 minutes.
///          Dead ranks are noticed without it.
[[nodiscard]] inline checkpoint_world make_checkpoint_world(const context& ctx, duration usual) {
    return checkpoint_world{
        .rank = ctx.rank(), .size = ctx.world_size(), .exchange = [&ctx, usual](byte_span mine) {
            if (ctx.world_size() == 1) return gather_bytes(ctx, mine);
            ctx.comm()->set_deadline(std::max<duration>(usual, std::chrono::minutes(30)));
            auto all = gather_bytes(ctx, mine);
            ctx.comm()->set_deadline(usual);
            return all;
        }};
}

} // namespace skein::train

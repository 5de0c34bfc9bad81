// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/detail/shard_names.hpp>.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/shard_tree.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <fmt/core.h>
#include <cstddef>
#include <vector>

#include <algorithm>
#include <string>
#include <utility>

namespace skein::train::detail {

SKEIN_INLINE std::vector<double> gather_by_shard(const context& ctx, int shards,
                                                 std::span<const double> mine, std::size_t each,
                                                 std::size_t before_first) {
    std::vector<double> all(mine.begin(), mine.end());
    if (ctx.world_size() == 1) return all;
    std::vector<std::size_t> counts;
    for (int r = 0; r < ctx.world_size(); ++r)
        counts.push_back(
            each * static_cast<std::size_t>(shards_of(shards, r, ctx.world_size()).size()) +
            (r == 0 ? before_first : 0));
    std::vector<double> joined(each * static_cast<std::size_t>(shards) + before_first);
    ctx.comm()
        ->all_gather_v(dist::view_of(std::span(std::as_const(all))),
                       dist::view_of(std::span(joined)), std::move(counts))
        .wait();
    return joined;
}

/// The larger one; what is not a number stays.
SKEIN_INLINE double most_of(double old, double value) noexcept {
    return old != old || !(value > old || value != value) ? old : value;
}

SKEIN_INLINE std::vector<report::metric_value> shard_names::merge(
    const context& ctx, const report::metric_set& own, const report::metric_set& outside,
    std::span<const shard_numbers> mine, std::span<double> control) {
    std::vector<row_type> rows;
    if (ctx.is_first()) rows.push_back({0, &own, &outside});
    int number = shards_of(shards_, ctx.rank(), ctx.world_size()).first;
    for (const auto& shard : mine) rows.push_back({++number, &shard.own, &shard.reported});

    // What is new to somebody is not in this exchange: all see that there is, and make another one.
    const bool knows = std::ranges::all_of(
        rows, [&](const row_type& row) { return known_.covers(*row.reported); });
    std::vector<double> with_news(control.begin(), control.end());
    with_news.push_back(knows ? 0.0 : 1.0);
    auto merged = exchange(ctx, own, rows, knows, with_news);
    std::copy_n(with_news.begin(), control.size(), control.begin());
    if (with_news.back() <= 0) return merged;
    learn(ctx, rows);
    return exchange(ctx, own, rows, true, {});
}

/// Names in the order of shards, whatever ranks have them.
SKEIN_INLINE void shard_names::learn(const context& ctx, std::span<const row_type> rows) {
    report::metric_set mine;
    for (const auto& row : rows) mine.know(*row.reported);
    std::vector<std::string> layouts;
    for (const auto& each : gather_bytes(ctx, as_bytes(mine.layout())))
        layouts.emplace_back(as_text(each));
    auto all = report::metric_set::join(layouts);
    if (!all) throw all.error();
    known_ = std::move(all->know(known_));
}

SKEIN_INLINE std::vector<report::metric_value> shard_names::exchange(
    const context& ctx, const report::metric_set& own, std::span<const row_type> rows,
    bool with_reported, std::span<double> control) const {
    auto layout = report::metric_set::with_layout(own.layout());
    layout.know(known_);
    std::vector<report::metric_set> sets;
    std::vector<double> mine;
    std::size_t sums = 0, width = 0;
    for (const auto& row : rows) {
        auto& set = sets.emplace_back(layout);
        set.append(*row.own);
        if (with_reported) set.append(*row.reported);
        const auto packed = set.pack(row.number);
        sums = packed.sums.size();
        width = sums + packed.maxima.size();
        mine.insert(mine.end(), packed.sums.begin(), packed.sums.end());
        mine.insert(mine.end(), packed.maxima.begin(), packed.maxima.end());
    }
    const auto all = gather_by_shard(ctx, shards_, mine, width, width);
    all_reduce(ctx, control, dist::reduce_op::max);

    report::packed_metrics merged;
    merged.sums.assign(sums, 0.0);
    merged.maxima.assign(all.begin() + static_cast<std::ptrdiff_t>(sums),
                         all.begin() + static_cast<std::ptrdiff_t>(width));
    for (std::size_t at = 0; at < all.size(); at += width) {
        for (std::size_t i = 0; i < sums; ++i) merged.sums[i] += all[at + i];
        for (std::size_t i = sums; i < width; ++i)
            merged.maxima[i - sums] = most_of(merged.maxima[i - sums], all[at + i]);
    }
    std::vector<double> lasts; // that the row outside has not: of one shard each
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto mine_of = sets[r].lasts_of(merged, rows[r].number);
        lasts.resize(mine_of.size(), 0.0);
        for (std::size_t i = 0; i < mine_of.size(); ++i) lasts[i] += mine_of[i];
    }
    all_reduce(ctx, lasts, dist::reduce_op::sum);
    sets[0].put_lasts(merged, lasts);
    return sets[0].unpack(merged).value();
}

SKEIN_INLINE void merge_shards(const context& ctx, int shards, std::vector<shard_metrics> mine,
                               metrics::metric_list& into, std::string_view stage) {
    // Of each shard: its sums, the first of which counts calls, and whether it had samples.
    const auto each = into.pack().sums.size() + 1;
    std::vector<double> sums, maxima;
    std::vector<byte_buffer> rows;
    for (auto& one : mine) {
        sums.insert(sums.end(), one.seen.sums.begin(), one.seen.sums.end());
        sums.push_back(one.was_dealt ? 1.0 : 0.0);
        if (maxima.empty()) maxima = one.seen.maxima;
        for (std::size_t i = 0; i < maxima.size(); ++i)
            maxima[i] = std::max(maxima[i], one.seen.maxima[i]);
        rows.push_back(std::move(one.seen.rows));
    }
    const auto all = gather_by_shard(ctx, shards, sums, each);
    if (!maxima.empty()) all_reduce(ctx, maxima, dist::reduce_op::max);
    bool shown = false;
    for (std::size_t at = 0; at < all.size(); at += each) shown = shown || all[at] > 0;
    for (std::size_t s = 0; s * each < all.size() && shown; ++s)
        if (all[s * each] <= 0 && all[(s + 1) * each - 1] > 0)
            throw error(errc::mismatch,
                        fmt::format("shard {} was given samples of stage \"{}\" and showed its "
                                    "metrics none of them, while another one did",
                                    s, stage))
                .with_hint("call stage.update() for every micro-batch: the numbers of all count");
    for (std::size_t at = 0; at < all.size(); at += each) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
        into.add(
            {.sums = {begin, begin + static_cast<std::ptrdiff_t>(each - 1)}, .maxima = maxima});
    }
    if (!into.has_rows()) return;
    for (const auto& of_rank : gather_bytes(ctx, wire::encode(rows)))
        for (const auto& one : wire::decode<std::vector<byte_buffer>>(of_rank).value())
            into.add_rows(one);
}

} // namespace skein::train::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/collective.hpp>.

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE bool is_of_world(const error& why) {
    const bool by_transport =
        why.where().starts_with("rank ") && why.where().find(" #") != std::string::npos;
    // "the loss on rank 1 at step 7", "sample 7 (cat/1.jpg), map(decode)"
    const bool by_user = why.where().starts_with("the ") || why.where().starts_with("sample ");
    return !by_user && (may_be_echo(why.code()) || by_transport);
}

} // namespace skein::train::detail

namespace skein::train {

SKEIN_INLINE void all_reduce(const context& ctx, std::span<double> values, dist::reduce_op op) {
    if (ctx.world_size() == 1 || values.empty()) return;
    ctx.comm()->all_reduce(dist::view_of(values), op).wait();
}

SKEIN_INLINE std::vector<byte_buffer> gather_bytes(const context& ctx, byte_span mine) {
    if (ctx.world_size() == 1) return {byte_buffer(mine.begin(), mine.end())};
    return gather_bytes(*ctx.comm(), mine);
}

SKEIN_INLINE std::vector<byte_buffer> gather_bytes(dist::comm_thread& comm, byte_span mine) {
    const auto world = static_cast<std::size_t>(comm.world_size());
    std::vector<byte_buffer> all(world);
    auto my_size = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(world);
    comm.all_gather(dist::view_of(std::span(&my_size, 1)), dist::view_of(std::span(sizes))).wait();

    std::vector<std::size_t> counts(sizes.begin(), sizes.end());
    std::size_t total = 0;
    for (auto n : counts) total += n;
    if (total == 0) return all;
    byte_buffer joined(total);
    comm.all_gather_v(dist::view_of(mine), dist::view_of(std::span(joined)), counts).wait();
    const auto* from = joined.data();
    for (std::size_t r = 0; r < world; ++r) {
        all[r].assign(from, from + counts[r]);
        from += counts[r];
    }
    return all;
}

SKEIN_INLINE std::string from_first(const context& ctx, const std::string& text) {
    const auto all = gather_bytes(ctx, ctx.is_first() ? as_bytes(text) : byte_span{});
    return std::string(as_text(all[0]));
}

SKEIN_INLINE void require_same(const context& ctx, std::uint64_t hash, std::string_view what) {
    byte_buffer mine(sizeof hash);
    std::memcpy(mine.data(), &hash, sizeof hash);
    const auto all = gather_bytes(ctx, mine);
    for (std::size_t r = 1; r < all.size(); ++r)
        if (all[r] != all[0])
            throw error(errc::mismatch,
                        fmt::format("{} of rank {} differs from that of rank 0", what, r))
                .with_hint("build it from the same options on every rank");
}

SKEIN_INLINE std::vector<spmd::setting> settings_of(const run_config& c) {
    const auto text = [](const auto& value) { return fmt::format("{}", value); };
    const char* const lasts[] = {"drop", "shorten", "carry"};
    const auto& saves = c.checkpoint;
    return {
        {"max_steps", text(c.max_steps)},
        {"epochs", text(c.epochs)},
        {"last_batch", lasts[static_cast<int>(c.last)]},
        {"global_batch", text(c.global_batch)},
        {"accumulation", text(c.accumulation)},
        {"seed", text(c.seed)},
        {"clip", text(c.clip)},
        {"clip_value", text(c.clip_value)},
        {"scaling.threads", text(std::max(c.scaling.threads, 1))},
        {"scaling.gpus", text(c.scaling.gpus)},
        {"scaling.logical_shards", text(c.scaling.logical_shards)},
        {"precision", c.precision},
        {"eval_every", text(c.eval_every)},
        {"eval_samples", text(c.eval_samples)},
        {"eval_batch", text(c.eval_batch)},
        {"checkpoint.enabled", text(saves.enabled)},
        {"checkpoint.every", text(saves.every)},
        {"checkpoint.keep_last", text(saves.keep_last)},
        {"checkpoint.keep_best.k", text(saves.keep_best.k)},
        {"checkpoint.keep_best.metric", saves.keep_best.metric},
        {"checkpoint.keep_best.order",
         saves.keep_best.order == metric_order::lowest ? "lowest" : "highest"},
        {"checkpoint.keep_best.value",
         saves.keep_best.value == best_value::newest ? "newest" : "evaluated"},
        {"checkpoint.keep_every", text(saves.keep_every)},
        {"checkpoint.keep_bytes", text(saves.keep_bytes)},
        {"checkpoint.asynchronous", saves.asynchronous ? text(*saves.asynchronous) : "automatic"},
        {"checkpoint.on_stop", text(saves.on_stop)},
        {"resume", text(c.resume == resume_mode::latest)},
        {"communicator", c.communicator},
        {"device", c.device},
        spmd::build_setting()};
}

SKEIN_INLINE void require_same(const context& ctx, const std::vector<spmd::setting>& mine) {
    if (ctx.world_size() == 1) return;
    byte_buffer hash(sizeof(std::uint64_t));
    store_le<std::uint64_t>(hash.data(), spmd::hash_of(mine));
    const auto hashes = gather_bytes(ctx, hash);
    if (std::ranges::all_of(hashes, [&](const auto& other) { return other == hashes[0]; })) return;
    // All ranks see that: now the values, to name what differs.
    const auto all = gather_bytes(ctx, wire::encode(mine));
    const auto first = wire::decode<std::vector<spmd::setting>>(all[0]).value();
    for (std::size_t r = 1; r < all.size(); ++r) {
        const auto other = wire::decode<std::vector<spmd::setting>>(all[r]).value();
        if (const auto why = spmd::difference(static_cast<int>(r), other, 0, first)) throw *why;
    }
}

SKEIN_INLINE std::vector<report::metric_value> merge(const context& ctx,
                                                     const report::metric_set& mine,
                                                     std::span<double> control) {
    if (ctx.world_size() == 1) return mine.values();
    auto packed = mine.pack(ctx.rank());
    const auto own = packed.maxima.size();
    packed.maxima.insert(packed.maxima.end(), control.begin(), control.end());
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
    std::copy(packed.maxima.begin() + static_cast<std::ptrdiff_t>(own), packed.maxima.end(),
              control.begin());
    packed.maxima.resize(own);
    auto lasts = mine.lasts_of(packed, ctx.rank());
    all_reduce(ctx, lasts, dist::reduce_op::sum);
    mine.put_lasts(packed, lasts);
    return mine.unpack(packed).value();
}

namespace detail {
/// Who showed its metrics what, as the largest over the ranks.
SKEIN_INLINE void require_shown(std::string_view stage, double without, double with) {
    if (without <= 0) return;
    if (with > 0)
        throw error(errc::mismatch,
                    fmt::format("rank {} was given samples of stage \"{}\" and showed its metrics "
                                "none of them, while rank {} did",
                                static_cast<int>(without) - 1, stage, static_cast<int>(with) - 1))
            .with_hint("call stage.update() on every rank: the numbers of all ranks count");
    throw error(errc::usage, fmt::format("no samples reached the metrics of stage \"{}\"", stage))
        .with_hint("call stage.update(preds, target) in the loss, whose third argument is a "
                   "skein::train::stage&");
}
} // namespace detail

SKEIN_INLINE void merge(const context& ctx, metrics::metric_list& mine, metrics::metric_list& into,
                        std::string_view stage, bool dealt, bool is_one_step) {
    auto packed = mine.pack();
    const double me = ctx.rank() + 1.0;
    double shown[] = {dealt && mine.updates() <= 0 ? me : 0.0, mine.updates() > 0 ? me : 0.0};
    if (ctx.world_size() == 1) {
        if (!is_one_step || shown[1] > 0) detail::require_shown(stage, shown[0], shown[1]);
        into.add(packed);
        return mine.clear();
    }
    const auto own = packed.maxima.size();
    packed.maxima.insert(packed.maxima.end(), std::begin(shown), std::end(shown));
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
    if (!is_one_step || packed.maxima[own + 1] > 0)
        detail::require_shown(stage, packed.maxima[own], packed.maxima[own + 1]);
    packed.maxima.resize(own);
    const auto rows = std::exchange(packed.rows, {});
    into.add(packed);
    if (into.has_rows())
        for (const auto& each : gather_bytes(ctx, rows)) into.add_rows(each);
    mine.clear();
}

SKEIN_INLINE std::vector<report::metric_value> shared_names::merge(
    const context& ctx, const report::metric_set& own, const report::metric_set& reported,
    std::span<double> control) {
    auto row = own;
    if (ctx.world_size() == 1) return row.append(reported).values();
    const bool knows = known_.covers(reported);
    // What is new to somebody is not in this exchange: all see that there is, and make another one.
    std::vector<double> with_news(control.begin(), control.end());
    with_news.push_back(knows ? 0.0 : 1.0);
    row.append(known_);
    if (knows) row.append(reported);
    auto merged = train::merge(ctx, row, with_news);
    std::copy_n(with_news.begin(), control.size(), control.begin());
    if (with_news.back() <= 0) return merged;
    learn(ctx, reported);
    row = own;
    return train::merge(ctx, row.append(known_).append(reported));
}

SKEIN_INLINE void shared_names::learn(const context& ctx, const report::metric_set& reported) {
    std::vector<std::string> layouts;
    for (const auto& each : gather_bytes(ctx, as_bytes(reported.layout())))
        layouts.emplace_back(as_text(each));
    auto all = report::metric_set::join(layouts);
    if (!all) throw all.error();
    known_ = std::move(all->know(known_)); // those that nobody reports this time, too
}

SKEIN_INLINE checkpoint_world make_checkpoint_world(const context& ctx) {
    (void)ctx.control(); // made now, by all ranks alike
    return checkpoint_world{
        .rank = ctx.rank(), .size = ctx.world_size(), .exchange = [&ctx](byte_span mine) {
            auto* const control = ctx.control();
            return control != nullptr ? gather_bytes(*control, mine) : gather_bytes(ctx, mine);
        }};
}

} // namespace skein::train

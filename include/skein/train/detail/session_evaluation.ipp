// SPDX-License-Identifier: Apache-2.0
#pragma once
// Evaluations of one session. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/session_stages.ipp>
#include <skein/train/detail/shard_names.hpp>
#include <skein/train/detail/shard_tree.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

using report::metric_value;

/// An evaluation came to no numbers, here or on another rank; the training is what it was. All ranks
/// throw it alike.
struct evaluation_failed {
    std::exception_ptr why; ///< null: on another rank, which tells
};

/// A run's evaluation sets.
class evaluator {
public:
    evaluator(session_parts& parts, const context& ctx, const run_config& config,
              const metrics::metrics_manager& declared)
        : parts_(parts), ctx_(ctx), config_(config), declared_(declared) {}

    /// One more set. Errors: already_exists, usage for a name that cannot be one.
    ///   reports  the loss may report numbers of its own
    void use(std::string name, sample_range data, numbered_loss loss, const evaluation_options& how,
             bool reports) {
        require_name(name);
        if (how.every < -1 || how.samples < -1 || how.batch < -1)
            throw error(errc::usage,
                        fmt::format("evaluation set \"{}\": every = {}, samples = {}, batch = {}",
                                    name, how.every, how.samples, how.batch))
                .with_hint("use numbers, or leave them out for what run_config says");
        const auto* const list = declared_.find(name);
        sets_.push_back({.name = std::move(name),
                         .data = std::move(data),
                         .loss = std::move(loss),
                         .how = how,
                         .list = list != nullptr ? *list : metrics::metric_list(),
                         .is_measured = list != nullptr,
                         .reports = reports,
                         .names = {},
                         .by_shard = shard_names(config_.scaling.logical_shards)});
    }
    /// Number of sets; those without samples are never evaluated.
    [[nodiscard]] std::size_t size() const noexcept { return sets_.size(); }
    [[nodiscard]] const std::string& name(std::size_t set) const { return sets_[set].name; }
    [[nodiscard]] std::uint64_t samples(std::size_t set) const { return data(set).samples; }
    [[nodiscard]] const sample_range& data(std::size_t set) const { return sets_[set].data; }
    /// Of all sets.
    [[nodiscard]] std::uint64_t samples() const noexcept {
        std::uint64_t all = 0;
        for (const auto& each : sets_) all += each.data.samples;
        return all;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto& each : sets_)
            if (each.data.samples > 0) all.push_back(each.name);
        return all;
    }
    /// Steps between two evaluations of the set; 0: only at the end.
    [[nodiscard]] std::int64_t every(std::size_t set) const {
        return sets_[set].how.every < 0 ? config_.eval_every : sets_[set].how.every;
    }
    /// The set whose numbers are called like this one; nothing when there is none.
    [[nodiscard]] std::optional<std::size_t> set_of(std::string_view metric) const {
        for (std::size_t i = 0; i < sets_.size(); ++i)
            if (sets_[i].data.samples > 0 && metric.starts_with(sets_[i].name + "_")) return i;
        return std::nullopt;
    }
    /// Metrics of a stage that there is not would never be measured: errc::usage.
    void check_stages() const {
        for (const auto& each : declared_.stages()) {
            const bool known =
                each.stage == "train" ||
                std::ranges::any_of(sets_, [&](const auto& s) { return s.name == each.stage; });
            if (known) continue;
            name_list list;
            list.add("train");
            for (const auto& set : sets_) list.add(set.name);
            throw error(errc::usage,
                        fmt::format("metrics are declared for stage \"{}\", which this run has not",
                                    each.stage))
                .with_hint(list.text("none"));
        }
    }
    /// Names of numbers that are known before the first step.
    [[nodiscard]] std::vector<std::string> known() const {
        std::vector<std::string> all;
        for (const auto& set : sets_) {
            if (set.data.samples == 0) continue;
            all.push_back(set.name + "_loss");
            for (const auto& name : number_names(set.list)) all.push_back(set.name + "_" + name);
        }
        return all;
    }
    void add_known(name_list& to) const {
        for (const auto& name : known()) to.add(name);
    }
    /// Sets that may have numbers besides those, since their loss may report some.
    [[nodiscard]] std::vector<std::string> open() const {
        std::vector<std::string> all;
        for (const auto& set : sets_)
            if (set.data.samples > 0 && set.reports) all.push_back(set.name);
        return all;
    }
    [[nodiscard]] bool is_measured(std::size_t set) const { return sets_[set].is_measured; }
    [[nodiscard]] bool reports(std::size_t set) const { return sets_[set].reports; }
    [[nodiscard]] bool is_known(std::string_view metric) const {
        const auto all = known();
        return std::ranges::find(all, metric) != all.end();
    }
    /// Whether this is a metric that comes to more than one number.
    [[nodiscard]] bool has_shape(std::string_view metric) const {
        const auto set = set_of(metric);
        if (!set) return false;
        const auto name = metric.substr(sets_[*set].name.size() + 1);
        const auto all = sets_[*set].list.names(), numbers = number_names(sets_[*set].list);
        return std::ranges::find(all, name) != all.end() &&
               std::ranges::find(numbers, name) == numbers.end();
    }
    /// The world is another one.
    void rebind() noexcept {
        for (auto& each : sets_) {
            each.names.forget();
            each.by_shard.forget();
        }
    }

    /// "<set>_loss", what the loss reports and the set's metrics, over the ranks; nothing without
    /// samples. Collective.
    [[nodiscard]] stage_numbers run(std::size_t number, std::uint64_t step) {
        auto& set = sets_[number];
        if (set.data.samples == 0) return {};
        const auto limit = static_cast<std::uint64_t>(set.how.samples < 0 ? config_.eval_samples
                                                                          : set.how.samples);
        const auto count = limit > 0 ? std::min(set.data.samples, limit) : set.data.samples;
        const int shards = config_.scaling.logical_shards;
        const auto [first, last] = rank_range(count, ctx_.rank(), ctx_.world_size());
        report::metric_set mine, reported{taken_names};
        mine.mean(set.name + "_loss", 0.0, 0.0);
        std::vector<shard_numbers> by_shard;
        std::vector<shard_metrics> seen;
        set.list.clear();
        set.made = 0;
        stage here(set.name, reported, set.is_measured ? &set.list : nullptr,
                   !declared_.stages().empty());
        std::exception_ptr failed;
        {
            at::NoGradGuard no_grad;
            parts_.begin_evaluation();
            const eval_modes modes(parts_.module());
            try {
                if (shards > 0)
                    by_shard = pass_shards(set, step, count, reported, here, seen);
                else
                    pass(set, step, first, last, mine, here);
            } catch (const error& why) {
                if (is_of_world(why)) throw;
                failed = std::current_exception();
            }
            parts_.end_evaluation();
        }
        agree(set, step, count, failed);
        try {
            return merged(set, step, shards, mine, reported, by_shard, std::move(seen));
        } catch (const error& why) {
            // Of the world, or of the weights: those are not worth a checkpoint.
            if (is_of_world(why) || why.code() == errc::not_finite) throw;
            throw evaluation_failed{std::current_exception()};
        }
    }

private:
    struct set_type {
        std::string name;
        sample_range data;
        numbered_loss loss;
        evaluation_options how;
        metrics::metric_list list;
        bool is_measured, reports;
        shared_names names;
        shard_names by_shard;   // with logical shards, in place of `names`
        std::uint64_t made = 0; // samples of this rank in the pass
    };

    /// Whether all ranks have come through their part, before they wait for each other's numbers.
    void agree(const set_type& set, std::uint64_t step, std::uint64_t count,
               const std::exception_ptr& failed) const {
        double both[] = {failed ? 1.0 : 0.0, static_cast<double>(set.made)};
        all_reduce(ctx_, both, dist::reduce_op::sum);
        if (both[0] > 0) throw evaluation_failed{failed};
        if (both[1] > 0) return;
        throw evaluation_failed{std::make_exception_ptr(
            error(errc::invalid_argument,
                  fmt::format("none of the {} samples of evaluation set \"{}\" could be made "
                              "after step {}",
                              count, set.name, step)))};
    }

    /// What the parts of all ranks come to. Collective.
    [[nodiscard]] stage_numbers merged(set_type& set, std::uint64_t step, int shards,
                                       report::metric_set& mine, report::metric_set& reported,
                                       std::vector<shard_numbers>& by_shard,
                                       std::vector<shard_metrics> seen) {
        stage_numbers out;
        out.values = shards > 0 ? set.by_shard.merge(ctx_, mine, {}, by_shard)
                                : set.names.merge(ctx_, mine, reported);
        for (std::size_t i = 1; i < out.values.size(); ++i)
            out.values[i].name.insert(0, set.name + "_");
        if (set.is_measured) {
            auto all = set.list;
            all.clear();
            if (shards > 0)
                merge_shards(ctx_, shards, std::move(seen), all, set.name);
            else
                merge(ctx_, set.list, all, set.name, set.made > 0);
            out.put(set.name, all.compute());
            refuse_twice(out.values);
        }
        check(set, step, out.values);
        return out;
    }

    void require_name(const std::string& name) const {
        const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   c == '-' || c == '.';
        });
        if (!plain || name == "train")
            throw error(errc::usage, fmt::format("an evaluation set called \"{}\"", name))
                .with_hint("its numbers are called <name>_loss: use letters, digits, '-' and '.', "
                           "and not \"train\"");
        for (const auto& each : sets_)
            if (each.name == name)
                throw error(errc::already_exists,
                            fmt::format("two evaluation sets are called \"{}\"", name))
                    .with_hint("name them: skein::evaluation(\"test\", data)");
    }

    /// The parts of the set that this rank has, each as if it were alone.
    [[nodiscard]] std::vector<shard_numbers> pass_shards(set_type& set, std::uint64_t step,
                                                         std::uint64_t count,
                                                         report::metric_set& reported, stage& here,
                                                         std::vector<shard_metrics>& seen) {
        const int shards = config_.scaling.logical_shards;
        const auto own = shards_of(shards, ctx_.rank(), ctx_.world_size());
        std::vector<shard_numbers> all;
        for (int s = own.first; s < own.last; ++s) {
            const auto [first, last] = rank_range(count, s, shards);
            auto& mine = all.emplace_back();
            mine.own.mean(set.name + "_loss", 0.0, 0.0);
            seed_step(~config_.seed, step, s); // for a loss that draws
            const auto before = set.made;
            pass(set, step, first, last, mine.own, here);
            mine.reported = reported;
            reported.clear();
            if (!set.is_measured) continue;
            seen.push_back({set.list.pack(), set.made > before});
            set.list.clear();
        }
        return all;
    }

    void pass(set_type& set, std::uint64_t step, std::uint64_t first, std::uint64_t last,
              report::metric_set& mine, stage& here) {
        std::vector<std::uint64_t> ids;
        for (auto at = first; at < last; at += ids.size()) {
            ids.clear();
            for (auto id = at; id < last && ids.size() < batch(set); ++id) ids.push_back(id);
            const user_code code{ctx_.rank(), step};
            const auto loss = code.run("the loss of an evaluation", [&] {
                try {
                    return loss_of(set, ids, step, here);
                } catch (const redo_step&) {
                    throw error(errc::usage,
                                "redo_step was thrown in an evaluation: it has no step");
                }
            });
            if (!loss) continue;
            mine.mean(set.name + "_loss",
                      loss->weighted ? loss->mean() : loss->value.item<double>(), loss->weight);
        }
    }

    /// Nothing when none of the samples could be made.
    [[nodiscard]] static std::optional<loss_sum> loss_of(set_type& set,
                                                         const std::vector<std::uint64_t>& ids,
                                                         std::uint64_t step, stage& here) {
        try {
            auto got = set.loss(ids, here);
            if (!got) return std::nullopt;
            set.made += got->samples;
            return checked_loss(std::move(got->loss), got->samples);
        } catch (const error& why) { // of a row: it has named its sample
            if (!why.where().starts_with("sample ")) throw;
            throw error(why).with_where(fmt::format("{}, of evaluation set \"{}\" after step {}",
                                                    why.where(), set.name, step));
        }
    }

    void check(const set_type& set, std::uint64_t step,
               const std::vector<metric_value>& merged) const {
        if (!std::isfinite(merged[0].value))
            throw error(errc::not_finite,
                        fmt::format("the {} is {} after step {}",
                                    set.name == "val" ? "validation loss" : set.name + " loss",
                                    merged[0].value, step))
                .with_hint("lower the learning rate, warm up longer or clip harder");
        const auto& best = config_.checkpoint.keep_best.metric;
        if (!config_.checkpoint.enabled || config_.checkpoint.keep_best.k < 1 ||
            set_of(best) != std::optional<std::size_t>(&set - sets_.data()) ||
            report::find_metric(merged, best) != nullptr)
            return;
        name_list list;
        list.add("loss"); // as the first of the evaluation is also called
        for (const auto& m : merged) list.add(m.name);
        throw error(errc::usage,
                    fmt::format("keep_best.metric '{}' is no number of an evaluation", best))
            .with_hint(list.text("there are none"));
    }

    [[nodiscard]] std::size_t batch(const set_type& set) const {
        const auto asked = set.how.batch < 0 ? config_.eval_batch : set.how.batch;
        if (asked > 0) return static_cast<std::size_t>(asked);
        const int shards = config_.scaling.logical_shards;
        const auto parts = shards > 0 ? shards : ctx_.world_size() * config_.accumulation;
        return static_cast<std::size_t>(std::max<std::int64_t>(1, config_.global_batch / parts));
    }

    session_parts& parts_;
    const context& ctx_;
    const run_config& config_;
    const metrics::metrics_manager& declared_;
    std::vector<set_type> sets_;
};

} // namespace skein::train::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of training in one session: what this rank has seen, and what all ranks have, of the
// window that is open and of the epoch. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/report/metrics.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/shard_names.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/stage.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// Merged metrics under the names they have outside: numbers, and those with a shape.
struct stage_numbers {
    std::vector<report::metric_value> values{};
    std::vector<report::metric_array> arrays{};

    void put(std::string_view prefix, std::vector<metrics::score> scores) {
        for (auto& each : scores) {
            auto name = fmt::format("{}_{}", prefix, each.name);
            if (each.is_number())
                values.push_back({std::move(name), each.values[0]});
            else
                arrays.push_back({std::move(name), std::move(each.shape), std::move(each.values)});
        }
    }
    void append(stage_numbers more) {
        values.insert(values.end(), more.values.begin(), more.values.end());
        arrays.insert(arrays.end(), more.arrays.begin(), more.arrays.end());
    }
};

/// One name is one thing.
SKEIN_INLINE void refuse_twice(const std::vector<report::metric_value>& values) {
    for (std::size_t i = 1; i < values.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            if (values[i].name == values[j].name)
                throw error(
                    errc::usage,
                    fmt::format("\"{}\" is both a number that the loss reports and a metric",
                                values[i].name))
                    .with_hint("call one of them otherwise");
}

/// Metrics that come to one number, not to one for each class.
[[nodiscard]] SKEIN_INLINE std::vector<std::string> number_names(metrics::metric_list list) {
    list.clear();
    std::vector<std::string> all;
    try {
        for (auto& each : list.compute())
            if (each.is_number()) all.push_back(std::move(each.name));
    } catch (...) { // a metric that wants samples: then it is told when it has some
        all = list.names();
    }
    return all;
}

/// What all ranks must have alike: the metrics of every stage with their options.
SKEIN_INLINE void add_settings(std::vector<spmd::setting>& to, const metrics::metrics_manager& of) {
    for (const auto& [stage, given] : of.stages()) {
        auto list = given;
        for (const auto& [name, text] : list.layout())
            to.push_back({fmt::format("metric {} of {}", name, stage), text});
    }
    if (!of.stages().empty())
        to.push_back({"window of metrics", fmt::format("{}", of.options().every)});
}

/// Bytes that the metrics of training may have in a checkpoint: its text holds them in hexadecimal,
/// among what else it has.
inline constexpr std::size_t most_saved_metrics = std::size_t{96} << 20;

SKEIN_INLINE void check_saved_size(std::size_t bytes) {
    if (bytes <= most_saved_metrics) return;
    throw error(errc::too_large,
                fmt::format("the metrics of training take {} MiB of a checkpoint, more than {} MiB",
                            bytes >> 20, most_saved_metrics >> 20))
        .with_hint("give them fewer classes or thresholds; exact ones, whose memory grows with the "
                   "samples, to evaluation sets only");
}

/// A run's newest numbers: those of `now` in the place of older ones of the same names.
SKEIN_INLINE void result_of(fit_result& result, const stage_numbers& now) {
    const auto put = [](auto& to, const auto& all) {
        for (const auto& each : all) {
            const auto found = std::ranges::find_if(
                to, [&](const auto& known) { return known.name == each.name; });
            if (found != to.end())
                *found = each;
            else
                to.push_back(each);
        }
    };
    put(result.metrics, now.values);
    put(result.arrays, now.arrays);
}

class training_stage {
public:
    training_stage(const context& ctx, const run_config& config, report::metric_set& reported,
                   const metrics::metrics_manager& declared)
        : ctx_(ctx), shards_(config.scaling.logical_shards), mine_(list_of(declared)), step_(mine_),
          window_(mine_), epoch_(mine_),
          stage_("train", reported, declared.find("train") != nullptr ? &mine_ : nullptr,
                 !declared.stages().empty()) {
        const auto asked = declared.options().every;
        every_ = static_cast<std::uint64_t>(asked > 0               ? asked
                                            : config.eval_every > 0 ? config.eval_every
                                                                    : 100);
        if (config.checkpoint.enabled && !empty()) // of the window and of the epoch
            check_saved_size(2 * mine_.save().size());
    }
    training_stage(const training_stage&) = delete;
    training_stage& operator=(const training_stage&) = delete;

    [[nodiscard]] train::stage& stage() noexcept { return stage_; }
    [[nodiscard]] bool empty() const noexcept { return mine_.empty(); }
    /// As they are called in rows.
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const char* prefix : {"train_", "train_epoch_"})
            for (const auto& name : mine_.names()) all.push_back(prefix + name);
        return all;
    }

    void begin_step() {
        by_shard_.clear();
        if (!empty()) mine_.mark(before_);
        dealt_before_ = dealt_;
    }
    /// Each step is shared before it is applied: ranks may be lost, or numbers go by shard.
    [[nodiscard]] bool shares() const noexcept { return ctx_.elastic() != nullptr || shards_ > 0; }
    /// The micro-batch of this number is through: what it showed is of its shard.
    void keep_shard(std::size_t number) {
        if (empty() || by_shard_.size() != number) return;
        by_shard_.push_back({mine_.pack(), std::exchange(dealt_, false)});
        mine_.clear();
    }
    /// The step that began has not been.
    void take_back() {
        by_shard_.clear();
        if (!empty()) mine_.go_back(before_);
        step_.clear();
        dealt_ = dealt_before_;
    }
    [[nodiscard]] stage_numbers& late() noexcept { return late_; }

    /// In a world whose ranks change, before a step is applied: all ranks have what each has seen in
    /// it. Collective.
    void share_step() {
        if (empty()) return;
        step_.clear(); // of a try that broke
        if (shards_ > 0)
            merge_shards(ctx_, shards_, std::exchange(by_shard_, {}), step_, "train");
        else
            merge(ctx_, mine_, step_, "train", dealt_, /*is_one_step=*/true);
        dealt_ = dealt_before_ = false;
    }
    /// The step that was shared is applied.
    void take_step() {
        if (empty()) return;
        window_.add(step_);
        step_.clear();
    }
    /// This rank is given samples.
    void deal() noexcept { dealt_ = true; }

    /// What is due after so many steps, and has not been told after them. Collective when something
    /// is.
    [[nodiscard]] stage_numbers end_of_step(std::uint64_t step, bool ends_epoch, bool is_last) {
        stage_numbers out = std::exchange(late_, {});
        if (empty()) return out;
        const bool ends = ends_epoch && ended_at_ != step;
        if (closed_at_ != step && (ends || is_last || step % every_ == 0)) {
            gather();
            if (window_.updates() > 0) out.put("train", window_.compute());
            close_window();
            closed_at_ = step;
        }
        if (ends) {
            if (epoch_.updates() > 0) out.append(close_epoch());
            ended_at_ = step;
        }
        return out;
    }
    /// The step that begins is of this epoch of numbered data, which tells with a step that it ends.
    void set_epoch(std::uint64_t number) noexcept { number_ = number; }
    /// The step that begins is of this epoch of a stream, which may tell only now that the one
    /// before is over. Collective when it does.
    void begin_epoch(std::uint64_t number) {
        if (empty() || number == number_) return;
        gather();
        close_window();
        if (epoch_.updates() > 0) late_ = close_epoch();
        number_ = number;
    }

    /// Of a checkpoint: what all ranks have, so that any number of them goes on. Collective.
    [[nodiscard]] json save() {
        if (empty()) return {};
        gather();
        return saved();
    }
    /// The same of what all ranks have by now.
    [[nodiscard]] json saved() {
        if (empty()) return {};
        const auto window = window_.save(), epoch = epoch_.save();
        check_saved_size(window.size() + epoch.size());
        return {{"window", to_hex(window)}, {"epoch", to_hex(epoch)}, {"number", number_}};
    }
    void restore(const json& extra, const std::string& where) {
        if (empty() || !extra.contains("train_metrics") || !extra.at("train_metrics").is_object())
            return;
        const auto& saved = extra.at("train_metrics");
        mine_.clear();
        const auto read = [&](const char* name, metrics::metric_list& to) {
            const auto hex = saved.value(name, "");
            byte_buffer bytes(hex.size() / 2);
            if (!from_hex(hex, bytes))
                throw error(errc::malformed, "saved metrics are no hexadecimal text")
                    .with_where(where);
            try {
                to.restore(bytes);
            } catch (const error& why) {
                throw error(why).with_where(where);
            }
        };
        read("window", window_);
        read("epoch", epoch_);
        number_ = saved.value("number", std::uint64_t{0});
    }
    /// A checkpoint amid an epoch that knows nothing of these metrics.
    [[nodiscard]] bool is_new_to(const json& extra) const {
        return !empty() && !extra.contains("train_metrics");
    }
    /// Ranks were lost with what they had seen.
    void forget() {
        mine_.clear();
        window_.clear();
        epoch_.clear();
        dealt_ = false;
    }

private:
    [[nodiscard]] static metrics::metric_list list_of(const metrics::metrics_manager& declared) {
        const auto* const found = declared.find("train");
        return found != nullptr ? *found : metrics::metric_list();
    }
    void gather() {
        if (shares()) return;
        merge(ctx_, mine_, window_, "train", std::exchange(dealt_, false));
        dealt_before_ = false;
    }
    void close_window() {
        epoch_.add(window_);
        window_.clear();
    }
    [[nodiscard]] stage_numbers close_epoch() {
        stage_numbers out;
        out.put("train_epoch", epoch_.compute());
        epoch_.clear();
        return out;
    }

    const context& ctx_;
    int shards_ = 0;                      // logical ones
    std::vector<shard_metrics> by_shard_; // of this rank in this step
    metrics::metric_list mine_, step_;    // of this rank; of all, of a step that is not applied yet
    metrics::metric_list window_, epoch_; // of all: since the last row; before
    metrics::list_mark before_;
    train::stage stage_;
    std::uint64_t every_ = 100, number_ = 0;     // of the epoch
    std::uint64_t closed_at_ = 0, ended_at_ = 0; // steps with a window's end, and an epoch's
    bool dealt_ = false, dealt_before_ = false;
    stage_numbers late_; // of an epoch whose end came late
};

} // namespace skein::train::detail

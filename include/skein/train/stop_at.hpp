// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ends training when a number is good enough: a rule that decides on a stop.
//
//     skein::Trainer<skein::DDP<>, skein::stop_at> trainer(
//         ctx, config, skein::stop_at({.metric = "val_accuracy", .value = 0.97}));
//
// All ranks end behind the step after the one that reached it, with a checkpoint. A run that goes on
// from there is stopped by the next number that is good enough.

#include <skein/train/callbacks.hpp>
#include <skein/train/description.hpp>
#include <skein/train/detail/rule_state.hpp>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein {

/// Which number ends a run.
struct stop_at_options {
    std::string metric{}; ///< e.g. "val_accuracy"; without a default, as there is none of at_least
                          ///< that fits every metric
    double value = 0.0;
    bool at_least = true; ///< false: at most, for a loss
    train::watched at = train::watched::evaluations;
};

/// The callback. It has no state: the stop that it asked for is in the checkpoint. NaN is never good
/// enough.
class stop_at {
public:
    static constexpr std::string_view rule_name = "stop_at";
    static constexpr bool changes_batch = false;

    /// Throws errc::usage without a metric, and for a value that is no number.
    explicit stop_at(stop_at_options options) : options_(std::move(options)) {
        train::detail::require_option(!options_.metric.empty(), rule_name, "no metric is named",
                                      "give one, e.g. val_accuracy, or val_loss with at_least = "
                                      "false");
        train::detail::require_option(!std::isnan(options_.value), rule_name, "a value of nan",
                                      "give the number that is good enough");
    }

    /// Throws errc::usage when no evaluation, or no row, can have such a number.
    void on_start(const train::start_info& s) {
        reason_.clear(); // of a run before
        if (options_.at == train::watched::evaluations)
            train::detail::require_evaluated(s, options_.metric, rule_name);
        else
            train::detail::require_in_rows(s.training, options_.metric, rule_name);
    }
    /// Both throw errc::usage when the number is not there. Other sets, and rows in which a metric of
    /// training is not due, are passed over.
    train::decision on_eval(const train::eval_info& e) {
        if (!train::detail::is_of_set(options_.metric, e.set)) return {};
        if (options_.at != train::watched::evaluations) return {};
        return look(train::detail::watched_number(*e.metrics, options_.metric, rule_name));
    }
    train::decision on_step(const train::step_info& s) {
        if (options_.at != train::watched::steps) return {};
        const auto now = train::detail::number_of_row(s, options_.metric, rule_name);
        return now ? look(*now) : train::decision{};
    }

    void describe(train::description& to) const {
        to.add("metric", options_.metric)
            .add("value", options_.value)
            .add("at_least", options_.at_least);
    }

    /// For a person, once it is reached; else empty.
    [[nodiscard]] std::string stop_reason() const { return reason_; }

private:
    train::decision look(double now) {
        if (!(options_.at_least ? now >= options_.value : now <= options_.value)) return {};
        auto why = fmt::format("{} is {:.6g}, {} {:.6g} is enough", options_.metric, now,
                               options_.at_least ? "at least" : "at most", options_.value);
        reason_ = fmt::format("{}: {}", rule_name, why);
        return {.act = train::action::stop, .why = std::move(why)};
    }

    stop_at_options options_;
    std::string reason_;
};

} // namespace skein

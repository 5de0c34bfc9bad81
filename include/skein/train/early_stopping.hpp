// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ends training when an evaluation has not improved for a while: a callback with an action and
// state.
//
//     skein::Trainer<skein::DDP<>, skein::early_stopping> trainer(
//         ctx, config, skein::early_stopping({.metric = "val_loss", .patience = 5}));
//
// What it has seen is in every checkpoint, so an interrupted run stops where an undisturbed one
// would. A run that goes on after it was stopped, or after its last step used the patience up, is
// stopped again by the next evaluation without an improvement. What is not finite is no improvement
// and never the best, as with the best checkpoint.

#include <skein/core/error.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/description.hpp>
#include <skein/train/detail/rule_state.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein {

/// Which number has to improve, and how many evaluations it may take.
struct early_stopping_options {
    std::string metric =
        "val_loss";     ///< of an evaluation: "val_loss", "val_<what the loss reports>"
    int patience = 3;   ///< evaluations in a row without an improvement, at least 1
    double least = 0.0; ///< a difference up to this is none
    bool lower_is_better = true;
};

/// The callback: stops after `patience` evaluations in a row without an improvement.
class early_stopping {
public:
    /// Throws errc::usage for options that make no sense.
    explicit early_stopping(early_stopping_options options = {}) : options_(std::move(options)) {
        if (options_.patience < 1)
            throw error(errc::usage,
                        fmt::format("early stopping: a patience of {}", options_.patience))
                .with_hint("at least 1 evaluation without an improvement ends a run");
        if (!(options_.least >= 0))
            throw error(errc::usage, fmt::format("early stopping: least is {}", options_.least))
                .with_hint("use 0 or a positive difference");
    }

    /// Throws errc::usage when no evaluation can have such a number.
    void on_start(const train::start_info& s) {
        train::detail::require_evaluated(s, options_.metric, "early stopping");
    }

    /// Throws errc::usage when the evaluation has no such number. Those of other sets are passed
    /// over.
    train::action on_eval(const train::eval_info& e) {
        if (!e.is_due || !train::detail::is_of_set(options_.metric, e.set))
            return train::action::go_on;
        const double now =
            train::detail::watched_number(*e.metrics, options_.metric, "early stopping");
        const bool better = is_better(now);
        if (better) {
            best_ = now;
            best_step_ = e.step;
        }
        waited_ = better ? 0 : waited_ + 1;
        return waited_ < options_.patience ? train::action::go_on : train::action::stop;
    }

    void describe(train::description& to) const {
        to.add("metric", options_.metric)
            .add("patience", options_.patience)
            .add("least", options_.least)
            .add("lower_is_better", options_.lower_is_better);
    }

    /// NaN before the first number.
    [[nodiscard]] double best() const noexcept { return best_; }
    /// The step whose evaluation gave the best; 0 before the first number.
    [[nodiscard]] std::uint64_t best_step() const noexcept { return best_step_; }
    /// Evaluations since the best one.
    [[nodiscard]] int waited() const noexcept { return waited_; }

    /// For a person, once the patience is used up; else empty.
    [[nodiscard]] std::string stop_reason() const {
        if (waited_ < options_.patience) return {};
        const auto what = fmt::format("early stopping: {} has not improved in {} evaluation{}",
                                      options_.metric, waited_, waited_ == 1 ? "" : "s");
        if (std::isnan(best_)) return what + ", it was never a number";
        return fmt::format("{}, best {:.6g} after step {}", what, best_, best_step_);
    }

    /// "<waited> <best, as a hexadecimal float> <step> <what is watched>".
    [[nodiscard]] std::string state() const {
        if (std::isnan(best_) && waited_ == 0) return "";
        return fmt::format("{} {} {} {}", waited_, train::detail::hexadecimal(best_), best_step_,
                           watch_id());
    }
    /// After the state of another metric, or of another direction, it begins anew. Throws
    /// errc::malformed for a text that is no state().
    void restore(std::string_view saved) {
        forget();
        if (saved.empty()) return;
        train::detail::state_words words(saved);
        auto id = watch_id(); // older states have none, and no step
        const bool right = words.read(waited_) && words.read(best_) &&
                           (words.empty() || words.read(best_step_)) &&
                           (words.empty() || words.read(id));
        if (!right || !words.empty()) train::detail::no_state("early stopping", saved);
        if (id != watch_id()) forget();
    }

private:
    [[nodiscard]] std::uint64_t watch_id() const noexcept {
        return train::detail::watch_id(options_.metric, options_.lower_is_better,
                                       train::watched::evaluations);
    }
    void forget() noexcept {
        waited_ = 0;
        best_ = std::numeric_limits<double>::quiet_NaN();
        best_step_ = 0;
    }
    /// The first finite number improves on there being none.
    [[nodiscard]] bool is_better(double now) const noexcept {
        if (std::isnan(best_) || !std::isfinite(now)) return std::isfinite(now);
        return (options_.lower_is_better ? best_ - now : now - best_) > options_.least;
    }

    early_stopping_options options_;
    double best_ = std::numeric_limits<double>::quiet_NaN();
    std::uint64_t best_step_ = 0;
    int waited_ = 0;
};

} // namespace skein

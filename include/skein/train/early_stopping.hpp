// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ends training when an evaluation has not improved for a while: a callback with an action and state.
//
//     skein::Trainer<skein::DDP<>, skein::early_stopping> trainer(
//         ctx, config, skein::early_stopping({.metric = "val_loss", .patience = 5}));
//
// What it has seen is in every checkpoint, so an interrupted run stops where an undisturbed one would. A
// run that goes on after it was stopped is stopped again by the next evaluation without an improvement.

#include <skein/core/error.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/callbacks.hpp>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein {

/// Which number has to improve, and how many evaluations it may take.
struct early_stopping_options {
    std::string metric =
        "val_loss";     ///< of an evaluation: "val_loss", "val_<what the loss reports>"
    int patience = 3;   ///< evaluations in a row without an improvement
    double least = 0.0; ///< a difference up to this is none
    bool lower_is_better = true;
};

/// The callback: stops after `patience` evaluations in a row without an improvement.
class early_stopping {
public:
    explicit early_stopping(early_stopping_options options = {}) : options_(std::move(options)) {}

    /// Throws errc::usage when the evaluation has no such number.
    train::action on_eval(const train::eval_info& e) {
        const auto* const now = report::find_metric(*e.metrics, options_.metric);
        if (now == nullptr)
            throw error(errc::usage,
                        fmt::format("early stopping: an evaluation has no '{}'", options_.metric))
                .with_hint("choose val_loss, or val_ and a name that the loss reports");
        const double gain = options_.lower_is_better ? best_ - *now : *now - best_;
        const bool better = !seen_ || gain > options_.least;
        if (better) best_ = *now;
        seen_ = true;
        waited_ = better ? 0 : waited_ + 1;
        return waited_ < options_.patience ? train::action::go_on : train::action::stop;
    }

    [[nodiscard]] double best() const noexcept { return best_; }
    /// Evaluations since the best one.
    [[nodiscard]] int waited() const noexcept { return waited_; }

    [[nodiscard]] std::string state() const {
        return seen_ ? fmt::format("{} {:a}", waited_, best_) : std::string();
    }
    void restore(std::string_view saved) {
        const std::string text(saved);
        char* rest = nullptr;
        seen_ = !text.empty();
        waited_ = static_cast<int>(std::strtol(text.c_str(), &rest, 10));
        best_ = std::strtod(rest, nullptr);
    }

private:
    early_stopping_options options_;
    double best_ = 0.0;
    int waited_ = 0;
    bool seen_ = false;
};

} // namespace skein

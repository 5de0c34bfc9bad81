// SPDX-License-Identifier: Apache-2.0
#pragma once
// Leaves a step out whose loss stands out from those before it, or ends the run: a rule that judges
// steps before they are applied.
//
//     skein::Trainer<skein::DDP<>, skein::loss_spike> trainer(ctx, config,
//                                                             skein::loss_spike({.factor = 3}));
//
// A step that is left out changes no parameter and no state of the optimizer; the data moves on, so
// its samples are not seen again in this epoch. It counts as a step.

#include <skein/train/callbacks.hpp>
#include <skein/train/description.hpp>
#include <skein/train/detail/rule_state.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein {

/// What a spike is, and what becomes of its step.
struct loss_spike_options {
    /// In the row of a step: "loss", "grad_norm", what was reported; no metric of training, which is
    /// made behind the step.
    std::string metric = "loss";
    double factor =
        0.0; ///< more than so many times the running mean, where that is above 0; 0: not
             ///< by this
    double deviations = 0.0; ///< more than so many standard deviations above it; 0: not by this
    double memory = 0.98;    ///< how much of the running mean stays with each step, from 0 to 1
    int warmup = 20;         ///< steps that are taken as they are, at least 1
    train::verdict then = train::verdict::leave_out; ///< or verdict::end
    int most = 5; ///< steps left out in a row; one more ends the run
};

/// The callback. A number that is not finite is a spike, also within the warm-up.
class loss_spike {
public:
    static constexpr std::string_view rule_name = "loss_spike";

    /// Throws errc::usage for options that make no sense.
    explicit loss_spike(loss_spike_options options) : options_(std::move(options)) {
        const auto& o = options_;
        using train::detail::require_option;
        require_option((o.factor == 0 || o.factor > 1) && o.deviations >= 0 &&
                           std::isfinite(o.factor) && std::isfinite(o.deviations),
                       rule_name,
                       fmt::format("a factor of {} and {} deviations", o.factor, o.deviations),
                       "use a factor of more than 1, or more than 0 deviations");
        require_option(o.factor > 0 || o.deviations > 0, rule_name, "nothing says what a spike is",
                       "give a factor or deviations");
        require_option(o.memory >= 0 && o.memory < 1, rule_name,
                       fmt::format("a memory of {}", o.memory), "use 0 or more and less than 1");
        require_option(o.warmup >= 1, rule_name, fmt::format("a warm-up of {} steps", o.warmup),
                       "use 1 or more");
        require_option(o.then != train::verdict::apply, rule_name, "a spike that is applied",
                       "choose verdict::leave_out or verdict::end");
        require_option(o.most >= 0, rule_name, fmt::format("at most {} steps in a row", o.most),
                       "use 0 or more");
    }

    void describe(train::description& to) const {
        to.add("metric", options_.metric)
            .add("factor", options_.factor)
            .add("deviations", options_.deviations)
            .add("memory", options_.memory)
            .add("warmup", options_.warmup)
            .add("then", options_.then == train::verdict::end ? "end" : "leave_out")
            .add("most", options_.most);
    }

    /// Throws errc::usage when the number is not there.
    train::ruling on_agreed(const train::step_info& s) {
        const double now = train::detail::watched_number(*s.metrics, options_.metric, rule_name,
                                                         train::watched::steps);
        const bool finite =
            std::isfinite(now) && std::isfinite(s.loss) && std::isfinite(s.grad_norm);
        const double bound = bound_now();
        if (finite && now <= bound) {
            in_a_row_ = 0;
            add(now);
            return {};
        }
        in_a_row_ += 1;
        auto why = fmt::format("{} is {:.6g}, after {} steps with a running mean of {:.6g}",
                               options_.metric, now, seen_, mean_);
        if (options_.then == train::verdict::leave_out && in_a_row_ <= options_.most)
            return {train::verdict::leave_out, std::move(why)};
        if (in_a_row_ > 1) why += fmt::format(", the {}. spike in a row", in_a_row_);
        return {train::verdict::end, std::move(why)};
    }

    [[nodiscard]] double running_mean() const noexcept { return mean_; }

    /// "<steps> <mean> <variance> <spikes in a row> <what is watched>".
    [[nodiscard]] std::string state() const {
        return fmt::format("{} {} {} {} {}", seen_, train::detail::hexadecimal(mean_),
                           train::detail::hexadecimal(variance_), in_a_row_,
                           train::detail::watch_id(options_.metric));
    }
    /// After the state of another metric its warm-up begins anew. Throws errc::malformed for a text
    /// that is no state().
    void restore(std::string_view saved) {
        train::detail::state_words words(saved);
        std::uint64_t id = 0;
        if (!words.read(seen_) || !words.read(mean_) || !words.read(variance_) ||
            !words.read(in_a_row_) || !words.read(id) || !words.empty())
            train::detail::no_state(rule_name, saved);
        if (id == train::detail::watch_id(options_.metric)) return;
        seen_ = 0;
        mean_ = variance_ = 0.0;
        in_a_row_ = 0;
    }

private:
    /// What a number may be at most.
    [[nodiscard]] double bound_now() const noexcept {
        double bound = std::numeric_limits<double>::infinity();
        if (seen_ < static_cast<std::uint64_t>(options_.warmup)) return bound;
        if (options_.factor > 0 && mean_ > 0) bound = options_.factor * mean_;
        if (options_.deviations > 0)
            bound = std::min(bound, mean_ + options_.deviations * std::sqrt(variance_));
        return bound;
    }
    /// Plain mean and variance at first, exponential ones once the memory is full.
    ///   source: Welford 1962; Finch 2009, "Incremental calculation of weighted mean and variance",
    ///   section 9
    void add(double now) noexcept {
        seen_ += 1;
        const double part = std::max(1.0 - options_.memory, 1.0 / static_cast<double>(seen_));
        const double away = now - mean_;
        mean_ += part * away;
        variance_ = (1.0 - part) * (variance_ + part * away * away);
    }

    loss_spike_options options_;
    std::uint64_t seen_ = 0; // steps that were applied
    double mean_ = 0.0, variance_ = 0.0;
    int in_a_row_ = 0;
};

} // namespace skein

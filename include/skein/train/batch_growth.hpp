// SPDX-License-Identifier: Apache-2.0
#pragma once
// More samples per step as training goes on: a rule that changes the plan.
//
//     skein::Trainer<skein::DDP<>, skein::batch_growth> trainer(
//         ctx, config,
//         skein::batch_growth({.every_epochs = 2, .max = 512,
//                              .rate = skein::batch_growth_rate::linear}));
//
// A run whose batch grows sees the same samples in the same order, in fewer steps; its length and
// its schedule go by samples. With last_batch::shorten or carry each sample comes once an epoch; drop
// leaves out more at the end of each epoch, the larger the batch is.
//   source: Smith, Kindermans, Ying, Le 2018 (arXiv 1711.00489); of the rates Goyal et al. 2017
//   (arXiv 1706.02677, linear) and Krizhevsky 2014 (arXiv 1404.5997, square root)

#include <skein/train/callbacks.hpp>
#include <skein/train/description.hpp>
#include <skein/train/detail/rule_state.hpp>
#include <skein/train/plateau.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein {

/// What the learning rate does when the batch becomes k times as large.
enum class batch_growth_rate : std::uint8_t {
    same,
    linear, ///< k times
    sqrt,   ///< the square root of k times
};

/// When the batch grows, and by how much. Each condition that is given counts by itself.
struct batch_growth_options {
    double factor = 2.0;  ///< more than 1; the new batch is rounded, and at least one sample larger
    int every_epochs = 0; ///< each time that so many more epochs are finished; 0: not by epochs
    std::vector<std::uint64_t> at_epochs{};          ///< once, when so many epochs are finished
    std::vector<std::uint64_t> at_steps{};           ///< once, behind these steps
    std::optional<train::plateau_options> plateau{}; ///< when a number has stopped improving
    /// The batch grows to this and no further. 0: no such limit, and what nobody can hold is an
    /// error.
    std::int64_t max = 0;
    batch_growth_rate rate = batch_growth_rate::same;
    /// More micro-batches of the size there is, in place of larger ones: for when memory is short.
    bool more_micro_batches = false;
};

/// The callback. Equal on all ranks, as what it goes by is.
class batch_growth {
public:
    static constexpr std::string_view rule_name = "batch_growth";

    /// Throws errc::usage for options that make no sense.
    explicit batch_growth(batch_growth_options options) : options_(std::move(options)) {
        const auto& o = options_;
        using train::detail::require_option;
        require_option(o.factor > 1 && std::isfinite(o.factor), rule_name,
                       fmt::format("a factor of {}", o.factor), "use more than 1, e.g. 2");
        require_option(o.every_epochs >= 0, rule_name,
                       fmt::format("growth every {} epochs", o.every_epochs), "use 1 or more");
        require_option(o.max >= 0, rule_name, fmt::format("a max of {}", o.max),
                       "use a number of samples, or 0 for none");
        require_option(o.every_epochs > 0 || !o.at_epochs.empty() || !o.at_steps.empty() ||
                           o.plateau.has_value(),
                       rule_name, "nothing says when the batch grows",
                       "give every_epochs, at_epochs, at_steps or plateau");
        if (o.plateau) watch_.emplace(*o.plateau, rule_name);
    }

    void describe(train::description& to) const {
        to.add("factor", options_.factor)
            .add("every_epochs", options_.every_epochs)
            .add("at_epochs", fmt::format("{}", fmt::join(options_.at_epochs, " ")))
            .add("at_steps", fmt::format("{}", fmt::join(options_.at_steps, " ")))
            .add("max", options_.max)
            .add("rate", static_cast<int>(options_.rate))
            .add("more_micro_batches", options_.more_micro_batches);
        if (watch_) watch_->describe(to);
    }

    /// Throws errc::usage when no evaluation can have the number of its plateau.
    void on_start(const train::start_info& s) const {
        if (watch_) watch_->require(s);
    }
    train::decision on_step(const train::step_info& s) {
        const auto reached = [](const std::vector<std::uint64_t>& marks, std::uint64_t now) {
            return static_cast<std::uint64_t>(
                std::ranges::count_if(marks, [&](std::uint64_t mark) { return mark <= now; }));
        };
        auto due = reached(options_.at_epochs, s.epoch) + reached(options_.at_steps, s.step);
        if (options_.every_epochs > 0)
            due += s.epoch / static_cast<std::uint64_t>(options_.every_epochs);
        auto times = due - std::min(due, std::exchange(done_, std::max(due, done_)));
        auto why = fmt::format("step {}, finished epochs: {}", s.step, s.epoch);
        if (watch_ && watch_->take(s)) {
            times += 1;
            why = watch_->why();
        }
        return times > 0 ? grown(*s.plan, times, why) : train::decision{};
    }
    /// Throws errc::usage when the number is not there.
    train::decision on_eval(const train::eval_info& e) {
        if (!watch_ || !watch_->take(e)) return {};
        return grown(*e.plan, 1, watch_->why());
    }

    /// "<conditions that were met>", with a plateau its state behind it.
    [[nodiscard]] std::string state() const {
        return fmt::format("{}{}{}", done_, watch_ ? " " : "", watch_ ? watch_->state() : "");
    }
    /// After the state of another metric, or without a plateau, its plateau begins anew. Throws
    /// errc::malformed for a text that is no state().
    void restore(std::string_view saved) {
        train::detail::state_words words(saved);
        bool right = words.read(done_);
        if (watch_) watch_->forget();
        if (right && !words.empty()) {
            train::plateau left({}, rule_name); // read, whether or not there is one now
            right = (watch_ ? *watch_ : left).restore(words) && words.empty();
        }
        if (!right) train::detail::no_state(rule_name, saved);
    }

private:
    [[nodiscard]] train::decision grown(const train::step_plan& plan, std::uint64_t times,
                                        const std::string& why) const {
        const double before = static_cast<double>(plan.global_batch);
        double wanted = before;
        for (std::uint64_t i = 0; i < times && wanted < 1e15; ++i)
            wanted = std::max(wanted + 1, std::round(wanted * options_.factor));
        if (options_.max > 0) wanted = std::min(wanted, static_cast<double>(options_.max));
        if (wanted <= before) return {};
        const double by = wanted / before;
        auto next = plan;
        next.global_batch = static_cast<std::int64_t>(wanted);
        if (options_.more_micro_batches)
            next.micro_batches =
                static_cast<std::int64_t>(std::ceil(static_cast<double>(plan.micro_batches) * by));
        switch (options_.rate) {
        case batch_growth_rate::same: break;
        case batch_growth_rate::linear: next.rate_factor *= by; break;
        case batch_growth_rate::sqrt: next.rate_factor *= std::sqrt(by); break;
        }
        return {.plan = next, .why = why};
    }

    batch_growth_options options_;
    std::optional<train::plateau> watch_;
    std::uint64_t done_ = 0;
};

} // namespace skein

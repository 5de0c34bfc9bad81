// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lowers the learning rate when a number has stopped improving: a rule that changes the plan.
//
//     skein::Trainer<skein::DDP<>, skein::reduce_on_plateau> trainer(
//         ctx, config, skein::reduce_on_plateau({.metric = "val_loss", .patience = 3}));
//
// It works on top of the schedule: the rate of a step is the schedule's times the plan's
// rate_factor. With a constant schedule the rates are those of PyTorch's scheduler of this name, step
// by step; what counts there as an epoch is here an evaluation (or a step).
//   source: torch.optim.lr_scheduler.ReduceLROnPlateau (PyTorch 2.15)

#include <skein/train/callbacks.hpp>
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

/// When the rate is lowered, and by how much; the defaults are PyTorch's.
struct reduce_on_plateau_options {
    std::string metric = "val_loss";
    double factor = 0.1;     ///< new rate = rate * factor; between 0 and 1
    int patience = 10;       ///< evaluations in a row without an improvement that are allowed
    double threshold = 1e-4; ///< a change up to this is no improvement
    bool relative = true;    ///< of the threshold: to the best number, else a difference
    int cooldown = 0;        ///< evaluations after a change that do not count
    double min_lr = 0.0;     ///< the rate goes no lower
    double eps = 1e-8;       ///< a change of the rate up to this is not made
    bool lower_is_better = true;
    train::watched at = train::watched::evaluations;
};

/// The callback. Equal on all ranks, as the numbers that it sees are.
class reduce_on_plateau {
public:
    static constexpr std::string_view rule_name = "reduce_on_plateau";
    static constexpr bool changes_batch = false;

    /// Throws errc::usage for options that make no sense.
    explicit reduce_on_plateau(reduce_on_plateau_options options = {})
        : options_(std::move(options)), best_(worst()) {
        const auto& o = options_;
        using train::detail::require_option;
        require_option(o.factor >= 0 && o.factor < 1, rule_name,
                       fmt::format("a factor of {}", o.factor), "use 0 or more and less than 1");
        require_option(o.patience >= 0, rule_name, fmt::format("a patience of {}", o.patience),
                       "use 0 or more evaluations");
        require_option(o.cooldown >= 0, rule_name, fmt::format("a cooldown of {}", o.cooldown),
                       "use 0 or more evaluations");
        require_option(o.threshold >= 0, rule_name, fmt::format("a threshold of {}", o.threshold),
                       "use 0 or a positive number");
        require_option(o.min_lr >= 0 && o.eps >= 0, rule_name,
                       fmt::format("a lowest rate of {} and an eps of {}", o.min_lr, o.eps),
                       "use 0 or positive numbers");
    }

    /// Both throw errc::usage when the number is not there.
    train::decision on_eval(const train::eval_info& e) {
        return options_.at == train::watched::evaluations ? take(e) : train::decision{};
    }
    train::decision on_step(const train::step_info& s) {
        return options_.at == train::watched::steps ? take(s) : train::decision{};
    }

    [[nodiscard]] double best() const noexcept { return best_; }

    /// "<best> <bad ones in a row> <left of the cooldown>".
    [[nodiscard]] std::string state() const {
        return fmt::format("{} {} {}", train::detail::hexadecimal(best_), bad_, cooldown_);
    }
    /// Throws errc::malformed for a text that is no state().
    void restore(std::string_view saved) {
        train::detail::state_words words(saved);
        if (!words.read(best_) || !words.read(bad_) || !words.read(cooldown_) || !words.empty())
            train::detail::no_state(rule_name, saved);
    }

private:
    [[nodiscard]] double worst() const noexcept {
        const auto most = std::numeric_limits<double>::infinity();
        return options_.lower_is_better ? most : -most;
    }
    [[nodiscard]] bool is_better(double now) const noexcept {
        const double by = options_.threshold;
        if (options_.lower_is_better)
            return options_.relative ? now < best_ * (1.0 - by) : now < best_ - by;
        return options_.relative ? now > best_ * (by + 1.0) : now > best_ + by;
    }

    template <class Event>
    train::decision take(const Event& e) {
        const double now =
            train::detail::watched_number(*e.metrics, options_.metric, rule_name, options_.at);
        const bool better = is_better(now);
        if (better) best_ = now;
        bad_ = better ? 0 : bad_ + 1;
        if (cooldown_ > 0) {
            cooldown_ -= 1;
            bad_ = 0;
        }
        if (bad_ <= options_.patience) return {};
        const auto why = fmt::format("{} is {:.6g}, {} in a row have not improved on {:.6g}",
                                     options_.metric, now, bad_, best_);
        cooldown_ = options_.cooldown;
        bad_ = 0;
        return lowered(*e.plan, e.next_rate, why);
    }

    [[nodiscard]] train::decision lowered(const train::step_plan& plan, double scheduled,
                                          const std::string& why) const {
        const double old = scheduled * plan.rate_factor;
        const double wanted = old * options_.factor;
        const double rate = std::max(wanted, options_.min_lr);
        // What is at its lowest but for the last bit of a division stays there.
        if (!(old - rate > options_.eps) || old <= options_.min_lr * (1.0 + 1e-12)) return {};
        auto next = plan;
        next.rate_factor =
            rate == wanted ? plan.rate_factor * options_.factor : options_.min_lr / scheduled;
        return {.plan = next, .why = why};
    }

    reduce_on_plateau_options options_;
    double best_;
    int bad_ = 0, cooldown_ = 0;
};

} // namespace skein

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
#include <skein/train/plateau.hpp>

#include <algorithm>
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
    double min_lr = 0.0;     ///< a change takes the rate no lower; the schedule may
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
        : options_(options), watch_({.metric = std::move(options.metric),
                                     .patience = options.patience,
                                     .threshold = options.threshold,
                                     .relative = options.relative,
                                     .cooldown = options.cooldown,
                                     .lower_is_better = options.lower_is_better,
                                     .at = options.at},
                                    rule_name) {
        const auto& o = options_;
        using train::detail::require_option;
        require_option(o.factor >= 0 && o.factor < 1, rule_name,
                       fmt::format("a factor of {}", o.factor), "use 0 or more and less than 1");
        require_option(o.min_lr >= 0 && o.eps >= 0, rule_name,
                       fmt::format("a lowest rate of {} and an eps of {}", o.min_lr, o.eps),
                       "use 0 or positive numbers");
    }

    /// Throws errc::usage when no evaluation, or no row, can have such a number.
    void on_start(const train::start_info& s) const { watch_.require(s); }
    /// Both throw errc::usage when the number is not there.
    train::decision on_eval(const train::eval_info& e) { return take(e); }
    train::decision on_step(const train::step_info& s) { return take(s); }

    void describe(train::description& to) const {
        watch_.describe(to);
        to.add("factor", options_.factor).add("min_lr", options_.min_lr).add("eps", options_.eps);
    }

    [[nodiscard]] double best() const noexcept { return watch_.best(); }

    /// What plateau::state() says.
    [[nodiscard]] std::string state() const { return watch_.state(); }
    /// After the state of another metric counting begins anew. Throws errc::malformed for a text
    /// that is no state().
    void restore(std::string_view saved) {
        train::detail::state_words words(saved);
        if (!watch_.restore(words) || !words.empty()) train::detail::no_state(rule_name, saved);
    }

private:
    template <class Event>
    train::decision take(const Event& e) {
        if (!watch_.take(e)) return {};
        return lowered(*e.plan, e.next_rate, watch_.why());
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
    train::plateau watch_;
};

} // namespace skein

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells when a number has stopped improving; what reduce_on_plateau and batch_growth wait for.
//
//     plateau watch({.metric = "val_loss", .patience = 3});
//     if (watch.take(0.31)) { ... }     // the fourth number in a row without an improvement
//
//   source: torch.optim.lr_scheduler.ReduceLROnPlateau (PyTorch 2.15), its step() and _is_better().
//   Other than there, a relative threshold makes a negative number harder to improve on, not easier
//   (pytorch#47513).

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

namespace skein::train {

/// Which number, and what counts as an improvement.
struct plateau_options {
    std::string metric = "val_loss";
    int patience = 10;       ///< numbers in a row without an improvement that are allowed
    double threshold = 1e-4; ///< a change up to this is no improvement
    bool relative = true;    ///< of the threshold: to the best number, else a difference
    int cooldown = 0;        ///< numbers behind a plateau that do not count
    bool lower_is_better = true;
    watched at = watched::evaluations;
};

/// See the file's head. NaN is no improvement.
class plateau {
public:
    /// Throws errc::usage, in the name of the rule, for options that make no sense.
    explicit plateau(plateau_options options = {}, std::string_view rule = "plateau")
        : options_(std::move(options)), rule_(rule), best_(worst()) {
        const auto& o = options_;
        using detail::require_option;
        require_option(o.patience >= 0, rule, fmt::format("a patience of {}", o.patience),
                       "use 0 or more");
        require_option(o.cooldown >= 0, rule, fmt::format("a cooldown of {}", o.cooldown),
                       "use 0 or more");
        require_option(o.threshold >= 0, rule, fmt::format("a threshold of {}", o.threshold),
                       "use 0 or a positive number");
    }

    /// True: there is a plateau, and counting begins anew. why() says what was seen.
    [[nodiscard]] bool take(double now) {
        const bool better = is_better(now);
        if (better) best_ = now;
        bad_ = better ? 0 : bad_ + 1;
        if (cooldown_ > 0) {
            cooldown_ -= 1;
            bad_ = 0;
        }
        if (bad_ <= options_.patience) return false;
        why_ = fmt::format("{} is {:.6g}, {} in a row have not improved on {:.6g}", options_.metric,
                           now, bad_, best_);
        cooldown_ = options_.cooldown;
        bad_ = 0;
        return true;
    }
    /// The same with the number out of an evaluation or a row; false for those of other sets, and for
    /// rows when evaluations are watched, and for rows without a metric of training that is not due.
    /// Throws errc::usage when the number is not there.
    [[nodiscard]] bool take(const eval_info& e) {
        return options_.at == watched::evaluations && e.is_due &&
               detail::is_of_set(options_.metric, e.set) &&
               take(detail::watched_number(*e.metrics, options_.metric, rule_));
    }
    [[nodiscard]] bool take(const step_info& s) {
        if (options_.at != watched::steps) return false;
        const auto now = detail::number_of_row(s, options_.metric, rule_);
        return now && take(*now);
    }
    /// Throws errc::usage when no evaluation, or no row, can have the number.
    void require(const start_info& s) const {
        if (options_.at == watched::evaluations)
            detail::require_evaluated(s, options_.metric, rule_);
        else
            detail::require_in_rows(s.training, options_.metric, rule_);
    }

    void describe(description& to) const {
        to.add("metric", options_.metric)
            .add("patience", options_.patience)
            .add("threshold", options_.threshold)
            .add("relative", options_.relative)
            .add("cooldown", options_.cooldown)
            .add("lower_is_better", options_.lower_is_better);
    }

    [[nodiscard]] const std::string& why() const noexcept { return why_; }
    [[nodiscard]] double best() const noexcept { return best_; }
    [[nodiscard]] const plateau_options& options() const noexcept { return options_; }

    /// "<best> <bad ones in a row> <left of the cooldown> <what is watched>".
    [[nodiscard]] std::string state() const {
        return fmt::format("{} {} {} {}", detail::hexadecimal(best_), bad_, cooldown_, watch_id());
    }
    /// False when the next words are no state(). After the state of another metric, or of another
    /// direction, counting begins anew.
    [[nodiscard]] bool restore(detail::state_words& words) {
        std::uint64_t id = 0;
        if (!words.read(best_) || !words.read(bad_) || !words.read(cooldown_) || !words.read(id))
            return false;
        if (id != watch_id()) forget();
        return true;
    }
    void forget() noexcept {
        best_ = worst();
        bad_ = cooldown_ = 0;
    }

private:
    [[nodiscard]] std::uint64_t watch_id() const noexcept {
        return detail::watch_id(options_.metric, options_.lower_is_better, options_.at);
    }
    [[nodiscard]] double worst() const noexcept {
        const auto most = std::numeric_limits<double>::infinity();
        return options_.lower_is_better ? most : -most;
    }
    [[nodiscard]] bool is_better(double now) const noexcept {
        // A part of a negative number lies on its other side.
        const bool mirrored = options_.relative && best_ < 0 && std::isfinite(best_);
        const double by = mirrored ? -options_.threshold : options_.threshold;
        if (options_.lower_is_better)
            return options_.relative ? now < best_ * (1.0 - by) : now < best_ - by;
        return options_.relative ? now > best_ * (by + 1.0) : now > best_ + by;
    }

    plateau_options options_;
    std::string_view rule_; // a literal
    double best_;
    int bad_ = 0, cooldown_ = 0;
    std::string why_;
};

} // namespace skein::train

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A look at the gradients of one session: which passes a step has, how much each counts, and what
// the row makes of their squares. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/goodput/gradient_noise.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/gradient_watch.hpp>
#include <skein/train/detail/session_shards.ipp>
#include <skein/train/gradient_look.hpp>
#include <skein/train/optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// By segment: the number of its parameter group, those of none behind the others; nobody's where
/// the group is frozen.
///   groups  becomes how many there are
[[nodiscard]] SKEIN_INLINE std::vector<std::size_t> groups_of(const parameter_groups& asked,
                                                              const flat_store& store,
                                                              std::size_t& groups) {
    std::vector<std::size_t> all;
    groups = asked.size();
    for (const auto& s : store.segments()) {
        const auto found = std::ranges::find_if(
            asked, [&](const parameter_group& g) { return g.match({s.name, s.shape}); });
        const auto number = static_cast<std::size_t>(found - asked.begin());
        if (found == asked.end()) groups = asked.size() + 1;
        all.push_back(found != asked.end() && found->frozen ? gradient_watch::nobody : number);
    }
    return all;
}

/// What a step is preconditioned with, if that is asked for.
[[nodiscard]] SKEIN_INLINE std::optional<squares_mean> mean_for(const gradient_look& how,
                                                                const flat_optimizer& optimizer,
                                                                const flat_store& store,
                                                                const std::string& strategy) {
    if (!how.preconditioned) return std::nullopt;
    auto mean = optimizer.options().how.mean_of_squares();
    if (!mean)
        throw error(errc::not_supported,
                    fmt::format("not supported: a look at preconditioned gradients with optimizer "
                                "{}, which has no mean of squares",
                                optimizer.name()))
            .with_hint(
                "train with Adam or AdamW; with another optimizer the rate of adaptive_batch "
                "is adascale or linear, and a look of one's own .preconditioned = false");
    if (store.is_sharded())
        throw error(errc::not_supported,
                    fmt::format("not supported: a look at preconditioned gradients with {}, where "
                                "a rank has a part of the second moments",
                                strategy))
            .with_hint("train with DDP, or look with .preconditioned = false");
    return mean;
}

class step_look {
public:
    step_look(const gradient_look& how, const context& ctx, session_parts& parts,
              const flat_optimizer& optimizer)
        : how_(how), ctx_(ctx), store_(parts.store()), optimizer_(optimizer),
          mean_(mean_for(how, optimizer_, store_, parts.strategy_name())),
          group_of_(groups_of(optimizer_.options().more.groups, store_, groups_)),
          watch_(store_, group_of_, groups_) {
        sums_all_ = groups_ == 1 && !mean_ &&
                    std::ranges::find(group_of_, gradient_watch::nobody) == group_of_.end();
        are_apart_ = parts.wait_for_pieces();
        store_.watch(&watch_);
    }
    ~step_look() { store_.watch(nullptr); }
    step_look(const step_look&) = delete;
    step_look& operator=(const step_look&) = delete;

    ///   passes  of this rank
    void begin_step(std::size_t passes) {
        is_alone_ = ctx_.world_size() == 1 && passes == 1;
        if (!is_alone_) has_before_ = false;
        passes_.clear();
        gradient_divisors by;
        is_mute_ = mean_ && optimizer_.steps() < gradient_look::first_preconditioned;
        if (mean_ && !is_mute_) by = divisors();
        watch_.begin_step(std::move(by), is_alone_ && how_.differences);
    }
    /// Around the strategy's begin_micro(): the pass before ends, the next one is apart from it.
    void before_pass(bool by_shards) {
        if (passes_.empty() || by_shards || are_apart_) return;
        store_.settle_gradients();
        store_.begin_pass(/*adds=*/true);
    }
    void begin_pass() {
        end();
        passes_.emplace_back();
    }
    /// The pass in hand is of this part of the global batch.
    void weigh(double part) { passes_.back().part = part; }
    /// All gradients of the last pass are in place.
    void end() {
        if (!passes_.empty()) passes_.back().sums = watch_.take();
    }

    /// The sums of this rank, into its row or those of its shards.
    ///   divisor  of what is applied
    void add_to(report::metric_set& own, step_shards* shards, double divisor) {
        pass_sums mine{.local = std::vector<double>(groups_)};
        for (std::size_t i = 0; i < passes_.size(); ++i) {
            const auto one = weighted(passes_[i]);
            if (shards != nullptr) add(shards->own_of(i), one);
            mine.count += one.count;
            for (std::size_t g = 0; g < groups_; ++g) mine.local[g] += one.local[g];
        }
        add(own, shards != nullptr ? pass_sums{.local = std::vector<double>(groups_)} : mine);
        if (sums_all_) return;
        std::vector<double> total(groups_);
        if (!is_alone_ && !is_mute_ && !store_.is_saved_elsewhere()) total = watch_.own();
        for (std::size_t g = 0; g < groups_; ++g)
            own.sum(name("total", g), total[g] / (divisor * divisor));
    }
    /// Takes those of all ranks out of the row, and gives the step its squares.
    ///   scale  of the losses; divisor: as above
    void read(std::vector<report::metric_value>& row, double scale, double divisor,
              step_info& now) {
        const auto values = take_hidden(row, squares_prefix);
        const auto count = static_cast<int>(values.at(0));
        squares_.clear();
        has_now_ = is_alone_ && how_.differences && count == 1;
        if (has_now_)
            difference(divisor);
        else if (count > 1)
            for (std::size_t g = 0; g < groups_; ++g)
                squares_.push_back(
                    {count, values.at(1 + g) / (scale * divisor),
                     sums_all_ ? now.grad_norm * now.grad_norm : values.at(1 + groups_ + g)});
        const bool is_finite = std::ranges::all_of(squares_, [](const auto& s) {
            return std::isfinite(s.local) && std::isfinite(s.total);
        });
        now.squares = squares_.empty() || is_mute_ || !is_finite ? nullptr : &squares_;
        now.squares_are_differenced = now.squares != nullptr && has_now_;
    }
    /// The step became one of the weights, or was left out.
    void end_step(bool was_applied) {
        has_before_ = has_now_ && was_applied;
        before_divisor_ = divisor_;
    }
    /// Those of a step that was made elsewhere.
    [[nodiscard]] const std::vector<goodput::gradient_squares>* keep(
        std::vector<goodput::gradient_squares> squares) {
        return &(squares_ = std::move(squares));
    }
    /// Nothing is known of a step before: another world, or a step that was taken back.
    void forget() {
        has_before_ = false;
        passes_.clear();
        watch_.forget();
    }

private:
    struct pass_type {
        double part = 0.0;
        std::vector<gradient_sums> sums{};
    };
    struct pass_sums {
        double count = 0.0;
        std::vector<double> local{};
    };

    static std::string name(const char* what, std::size_t group) {
        return fmt::format("{}{}/{}", squares_prefix, what, group);
    }
    static void add(report::metric_set& to, const pass_sums& sums) {
        to.sum(name("count", 0), sums.count);
        for (std::size_t g = 0; g < sums.local.size(); ++g) to.sum(name("local", g), sums.local[g]);
    }
    /// One that weighs nothing has no gradient either, or the step has no number.
    [[nodiscard]] pass_sums weighted(const pass_type& pass) const {
        pass_sums out{pass.part > 0 ? 1.0 : 0.0, std::vector<double>(groups_)};
        for (std::size_t g = 0; g < groups_ && g < pass.sums.size(); ++g)
            if (pass.sums[g].now != 0.0) out.local[g] = pass.sums[g].now / pass.part;
        return out;
    }
    /// Squares of (g' / d' + g / d) / 2, of gradients that the store has times d' and d.
    void difference(double divisor) {
        divisor_ = divisor;
        if (!has_before_) return;
        for (const auto& sums : passes_.front().sums) {
            const double now = sums.now / divisor / divisor;
            const double before = sums.before / before_divisor_ / before_divisor_;
            const double cross = sums.cross / divisor / before_divisor_;
            squares_.push_back(goodput::differenced(before, now, (before + 2 * cross + now) / 4));
        }
    }
    [[nodiscard]] gradient_divisors divisors() const {
        gradient_divisors by;
        for (const auto& [state, moments] : optimizer_.states())
            if (state == mean_->state)
                by.moments = static_cast<const float*>(moments.const_data_ptr());
        by.eps = static_cast<float>(mean_->eps);
        const auto& left_out = optimizer_.left_out();
        for (std::size_t i = 0; i < group_of_.size(); ++i) {
            const auto steps = optimizer_.steps() - (left_out.empty() ? 0 : left_out[i]);
            const double start = 1.0 - std::pow(mean_->decay, static_cast<double>(steps));
            by.factors.push_back(start > 0 ? static_cast<float>(1.0 / std::sqrt(start)) : 0.0f);
        }
        return by;
    }

    const gradient_look how_;
    const context& ctx_;
    flat_store& store_;
    const flat_optimizer& optimizer_;
    std::optional<squares_mean> mean_;
    std::size_t groups_ = 1;
    std::vector<std::size_t> group_of_;
    gradient_watch watch_;
    bool are_apart_ = false; // passes, whoever looks
    bool sums_all_ = true;   // the norm of the step is that of the one group
    bool is_alone_ = false, is_mute_ = false;
    std::vector<pass_type> passes_;
    bool has_before_ = false, has_now_ = false; // a gradient of the step before, of this one
    double divisor_ = 1.0, before_divisor_ = 1.0;
    std::vector<goodput::gradient_squares> squares_; // of the step
};

} // namespace skein::train::detail

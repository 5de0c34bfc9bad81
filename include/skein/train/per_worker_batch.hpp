// SPDX-License-Identifier: Apache-2.0
#pragma once
// As many samples for each worker, however many there are: the usual way of an elastic job whose
// program says a batch per process.
//
//     skein::Trainer<skein::Elastic<skein::DDP<>>, skein::per_worker_batch> trainer(
//         ctx, config, skein::per_worker_batch({.samples = 32}));
//
// The global batch is workers times samples. The rate goes with it beside config.global_batch, which is
// what the rate of the schedule is meant for. The run sees as many samples as with that batch.

#include <skein/goodput/rate_rule.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/description.hpp>
#include <skein/train/detail/rule_state.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace skein {

struct per_worker_batch_options {
    std::int64_t samples = 0; ///< of each worker
    /// linear, sqrt, or same. Those that need a measured gain are adaptive_batch's.
    goodput::rate_rule rate = goodput::rate_rule::linear;
};

/// The callback.
class per_worker_batch {
public:
    static constexpr std::string_view rule_name = "per_worker_batch";
    static constexpr bool changes_batch = true;

    /// Throws errc::usage for options that make no sense.
    explicit per_worker_batch(per_worker_batch_options options) : options_(options) {
        using train::detail::require_option;
        require_option(options.samples >= 1, rule_name,
                       fmt::format("{} samples of each worker", options.samples), "use 1 or more");
        using enum goodput::rate_rule;
        require_option(options.rate == same || options.rate == linear || options.rate == sqrt,
                       rule_name,
                       fmt::format("the rate rule {}", goodput::name_of(options.rate)),
                       "use linear, sqrt or same");
    }

    void describe(train::description& to) const {
        to.add("samples", options_.samples)
            .add("rate", std::string(goodput::name_of(options_.rate)));
    }
    train::decision on_world(const train::world_change& world) const {
        auto next = *world.plan;
        next.global_batch = options_.samples * world.world_size;
        return {.plan = next,
                .why = fmt::format("{} workers of {} samples", world.world_size, options_.samples)};
    }
    [[nodiscard]] double rate(const train::rate_info& step) const {
        // By the plan: a step that the end of an epoch cuts short keeps its rate.
        const double scale = static_cast<double>(step.plan->global_batch) /
                             static_cast<double>(step.first_batch);
        return goodput::rate_factor(options_.rate, {.scale = scale});
    }

private:
    per_worker_batch_options options_;
};

} // namespace skein

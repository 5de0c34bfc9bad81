// SPDX-License-Identifier: Apache-2.0
#pragma once
// Evaluations of one session. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

using report::metric_value;

class evaluator {
public:
    evaluator(session_parts& parts, const context& ctx, const run_config& config)
        : parts_(parts), ctx_(ctx), config_(config) {}

    void use(std::uint64_t samples, numbered_loss loss) {
        samples_ = samples;
        loss_ = std::move(loss);
    }
    [[nodiscard]] std::uint64_t samples() const noexcept { return samples_; }
    /// The world is another one.
    void rebind() noexcept { names_.forget(); }

    /// "val_loss" and what the loss reports, over the ranks; nothing without samples. Collective.
    [[nodiscard]] std::vector<metric_value> run(std::uint64_t step) {
        if (samples_ == 0) return {};
        const auto limit = static_cast<std::uint64_t>(config_.eval_samples);
        const auto count = limit > 0 ? std::min(samples_, limit) : samples_;
        const auto [first, last] = rank_range(count, ctx_.rank(), ctx_.world_size());
        report::metric_set mine, reported{taken_names};
        mine.mean("val_loss", 0.0, 0.0);
        {
            at::NoGradGuard no_grad;
            parts_.begin_evaluation();
            const eval_modes modes(parts_.module());
            pass(step, first, last, mine, reported);
            parts_.end_evaluation();
        }
        auto merged = names_.merge(ctx_, mine, reported);
        for (std::size_t i = 1; i < merged.size(); ++i) merged[i].name.insert(0, "val_");
        check(step, merged);
        return merged;
    }

private:
    void pass(std::uint64_t step, std::uint64_t first, std::uint64_t last, report::metric_set& mine,
              report::metric_set& reported) {
        std::vector<std::uint64_t> ids;
        for (auto at = first; at < last; at += ids.size()) {
            ids.clear();
            for (auto id = at; id < last && ids.size() < batch(); ++id) ids.push_back(id);
            reported.weigh(static_cast<double>(ids.size()));
            const user_code here{ctx_.rank(), step};
            const auto loss = here.run("the loss of an evaluation", [&] {
                try {
                    return checked_loss(loss_(ids, reported), ids.size());
                } catch (const redo_step&) {
                    throw error(errc::usage,
                                "redo_step was thrown in an evaluation: it has no step");
                }
            });
            mine.mean("val_loss", loss.weighted ? loss.mean() : loss.value.item<double>(),
                      loss.weight);
        }
    }

    void check(std::uint64_t step, const std::vector<metric_value>& merged) const {
        if (!std::isfinite(merged[0].value))
            throw error(errc::not_finite, fmt::format("the validation loss is {} after step {}",
                                                      merged[0].value, step))
                .with_hint("lower the learning rate, warm up longer or clip harder");
        const auto& best = config_.checkpoint.keep_best.metric;
        if (!config_.checkpoint.enabled || config_.checkpoint.keep_best.k < 1 || best == "loss" ||
            report::find_metric(merged, best) != nullptr)
            return;
        name_list list;
        list.add("loss"); // as the first of the evaluation is also called
        for (const auto& m : merged) list.add(m.name);
        throw error(
            errc::usage,
            fmt::format("checkpoint.keep_best.metric '{}' is no number of an evaluation", best))
            .with_hint(list.text("there are none"));
    }

    [[nodiscard]] std::size_t batch() const {
        if (config_.eval_batch > 0) return static_cast<std::size_t>(config_.eval_batch);
        const auto parts = ctx_.world_size() * config_.accumulation;
        return static_cast<std::size_t>(std::max<std::int64_t>(1, config_.global_batch / parts));
    }

    session_parts& parts_;
    const context& ctx_;
    const run_config& config_;
    std::uint64_t samples_ = 0;
    numbered_loss loss_;
    shared_names names_;
};

} // namespace skein::train::detail

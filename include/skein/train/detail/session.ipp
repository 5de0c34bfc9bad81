// SPDX-License-Identifier: Apache-2.0
#pragma once
// One fit(): the loop behind Trainer, and the bodies of <skein/train/detail/session.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/sampler.hpp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

using report::metric_value;

SKEIN_INLINE fit_parts::~fit_parts() = default;

class session {
public:
    session(const fit_request& request, fit_parts& parts, sampler order)
        : parts_(parts), ctx_(*request.ctx), config_(*request.config), reported_(*request.reported),
          rate_(request.rate), order_(std::move(order)), held_out_(request.held_out),
          total_(static_cast<std::uint64_t>(config_.max_steps)),
          optimizer_(request.options, parts.store()), state_(parts.store(), optimizer_, order_),
          report_(ctx_, config_, described_settings(request)) {
        reported_.clear();
        result_.rank = ctx_.rank();
        result_.val_loss = std::numeric_limits<double>::quiet_NaN();
    }
    session(const session&) = delete;
    session& operator=(const session&) = delete;

    fit_result all() {
        const auto begin = seconds_now();
        if (!optimizer_.options().more.groups.empty())
            require_same(ctx_, optimizer_.effect_hash(), "what the parameter groups match");
        const auto resumed_from = open_checkpoints();
        result_.first_step = step_;
        start_info start{.rank = ctx_.rank(),
                         .world_size = ctx_.world_size(),
                         .first_step = step_,
                         .total_steps = total_,
                         .parameters = parts_.store().trainable(),
                         .run_path = report_.path(),
                         .resumed_from = resumed_from,
                         .strategy = parts_.strategy_name()};
        report_.begin(start);
        for (const auto& text : notices_) report_.notice(text);
        tell_memory();
        parts_.tell(start);

        // A model that is in eval mode as a whole is to be trained; a submodule may be so on purpose.
        if (!parts_.module().is_training()) parts_.module().train();
        while (step_ < total_ && !stopped_) one_step();
        if (evaluated_at_ != step_ && !stopped_) evaluate();

        report_.finish();
        if (auto* const average = optimizer_.average(); average && average->options().keep)
            swap_average();
        parts_.finish();
        finish_result(seconds_now() - begin);
        parts_.tell(result_);
        return result_;
    }

private:
    void tell_memory() {
        if (!ctx_.is_first()) return;
        std::vector<at::Tensor> states;
        for (const auto& [name, state] : optimizer_.states()) states.push_back(state);
        const auto text = memory_notice(parts_.strategy_name(), parts_.store(), states,
                                        shape_of(ctx_, config_, states_of(optimizer_.options())));
        if (!text.empty()) report_.note(text);
    }

    // ---- one optimizer step ------------------------------------------------------------------

    void one_step() {
        const auto begin = seconds_now();
        const auto slice = order_.next(ctx_.rank(), ctx_.world_size());
        parts_.begin_step();
        const auto losses = forward_backward(slice);
        parts_.finish_backward();

        step_info now{.rank = ctx_.rank(), .step = step_ + 1, .lr = learning_rate(rate_, step_)};
        const double mine = parts_.store().own_squared_norm();
        const double divisor =
            weight_per_sample(losses.weight, static_cast<double>(slice.global_batch));
        now.grad_norm = std::sqrt(parts_.squared_norm(mine)) / divisor;
        const auto merged = agree(now, losses.mean(), losses.weight);

        const double scale = clip_to(now.grad_norm, config_.clip).scale * divisor;
        optimizer_.step(now.lr, scale, present_, config_.clip_value);
        parts_.publish();
        step_ += 1;
        reported_.clear();
        now.metrics = &merged;
        count_time(now, seconds_now() - begin, static_cast<double>(slice.global_batch));
        parts_.tell(now);
        end_of_step(now);
    }

    /// The row of the step, equal on all ranks, and what they decide with it: whether the numbers are
    /// finite, whether to stop, which parameters had a gradient. Nothing is changed before.
    std::vector<metric_value> agree(step_info& now, double my_loss, double share) {
        report::metric_set row;
        row.mean("loss", my_loss, share).last("lr", now.lr).last("grad_norm", now.grad_norm);
        row.append(reported_);
        const auto& touched = parts_.store().touched();
        const bool all_touched = std::ranges::find(touched, 0.0) == touched.end();
        double control[] = {ctx_.stop_requested() ? std::max(1.0, double(ctx_.stop_signal())) : 0.0,
                            all_touched ? 0.0 : 1.0, now.grad_norm, -now.grad_norm};
        auto merged = merge(ctx_, row, control);
        now.loss = merged[0].value;
        if (!std::isfinite(now.grad_norm) || !std::isfinite(now.loss))
            not_finite(my_loss, now.grad_norm, now.lr);
        if (control[2] != -control[3]) come_apart(-control[3], control[2]);

        stopped_ = control[0] > 0.0;
        if (control[0] > 1.0) result_.stop_signal = static_cast<int>(control[0]);
        present_.clear();
        if (control[1] > 0.0) { // rarely: who had which
            present_ = touched;
            all_reduce(ctx_, present_, dist::reduce_op::max);
        }
        return merged;
    }

    /// The norm of the summed gradients has the same bits on every rank, or the replicas differ.
    [[noreturn]] void come_apart(double least, double most) const {
        throw error(
            errc::mismatch,
            fmt::format("the ranks have come apart at step {}: the gradient norm is {:.17g} "
                        "on one and {:.17g} on another",
                        step_ + 1, least, most))
            .with_hint(
                "do all hosts have the same kind of processor and the same libraries, and does "
                "nothing but the trainer write to the parameters?");
    }

    void count_time(step_info& now, double seconds, double samples) {
        const double per_sample =
            config_.tokens_per_sample > 0 ? double(config_.tokens_per_sample) : 1.0;
        const double tokens = samples * per_sample;
        now.seconds = seconds;
        now.tokens_per_s = seconds > 0 ? tokens / seconds : 0.0;
        result_.loss = now.loss;
        train_seconds_ += seconds;
        tokens_ += tokens;
    }

    /// Forward and backward of this rank's samples.
    loss_sum forward_backward(const batch_slice& slice) {
        const auto parts = static_cast<int>(config_.accumulation);
        loss_sum all;
        for (int part = 0; part < parts; ++part) {
            const auto [first, last] = rank_range(slice.ids.size(), part, parts);
            // By the micro-batch's number in the global batch: many ranks draw what one process draws.
            seed_step(config_.seed, step_, ctx_.rank() * parts + part);
            parts_.begin_micro(part + 1 == parts);
            if (first == last) continue; // finish_backward() sends what no hook has sent
            const auto count = last - first;
            const auto ids = std::span<const std::uint64_t>(slice.ids).subspan(first, count);
            const user_code here{ctx_.rank(), step_ + 1};
            const auto loss = here.run(
                "the loss", [&] { return checked_loss(parts_.loss(ids, reported_), count); });
            // A mean is weighted by its share of the global batch, so that the sum over ranks is the
            // batch's mean. A sum over weights is divided by them when all are known.
            const double share = (loss.weighted ? 1.0 : static_cast<double>(count)) /
                                 static_cast<double>(slice.global_batch);
            here.run("the backward pass",
                     [&] { loss.value.backward(at::full_like(loss.value, share)); });
            all.add(loss);
        }
        return all;
    }

    /// What the summed gradients are to be divided by: 1 but for a weighted loss.
    double weight_per_sample(double mine, double global_batch) {
        if (!parts_.loss_is_weighted()) return 1.0;
        all_reduce(ctx_, std::span(&mine, 1), dist::reduce_op::sum);
        if (mine > 0) return mine / global_batch;
        throw error(
            errc::invalid_argument,
            fmt::format("the weights of all losses of step {} add up to {}", step_ + 1, mine))
            .with_hint("is everything masked? leave such samples out of the data");
    }

    void end_of_step(const step_info& now) {
        const auto due = [&](std::int64_t every) {
            return step_ == total_ || (every > 0 && step_ % static_cast<std::uint64_t>(every) == 0);
        };
        std::vector<metric_value> evaluated;
        if (due(config_.eval_every) && !stopped_) evaluated = evaluate();
        report_.step(now, evaluated);
        if (due(config_.checkpoint_every) || stopped_) save(evaluated);
    }

    /// Collective: finds the first rank whose loss is broken, then throws on all of them.
    [[noreturn]] void not_finite(double my_loss, double norm, double lr) {
        const double none = static_cast<double>(ctx_.world_size());
        double culprit = std::isfinite(my_loss) ? none : static_cast<double>(ctx_.rank());
        all_reduce(ctx_, std::span(&culprit, 1), dist::reduce_op::min);
        const auto what = culprit < none
                              ? fmt::format("the loss is not finite on rank {}", int(culprit))
                              : fmt::format("the gradient norm is {} (loss {})", norm, my_loss);
        throw error(errc::not_finite, fmt::format("{} at step {}", what, step_ + 1))
            .with_hint(
                fmt::format("lower the learning rate (now {:g}), warm up longer or clip harder; "
                            "restarting would give the same",
                            lr));
    }

    // ---- evaluation --------------------------------------------------------------------------

    std::vector<metric_value> evaluate() {
        evaluated_at_ = step_;
        if (held_out_ == 0) return {};
        const auto begin = seconds_now();
        const auto limit = static_cast<std::uint64_t>(config_.eval_samples);
        const auto count = limit > 0 ? std::min(held_out_, limit) : held_out_;
        const auto [first, last] = rank_range(count, ctx_.rank(), ctx_.world_size());
        report::metric_set mine, reported{taken_names};
        mine.mean("val_loss", 0.0, 0.0);
        auto* const average = optimizer_.average();
        const bool averaged = average != nullptr && average->options().evaluate;
        if (averaged) swap_average();
        {
            at::NoGradGuard no_grad;
            parts_.begin_evaluation();
            const eval_modes modes(parts_.module());
            std::vector<std::uint64_t> ids;
            for (auto at = first; at < last; at += ids.size()) {
                ids.clear();
                for (auto id = at; id < last && ids.size() < eval_batch(); ++id) ids.push_back(id);
                const user_code here{ctx_.rank(), step_};
                const auto loss = here.run("the loss of an evaluation", [&] {
                    return checked_loss(parts_.held_out_loss(ids, reported), ids.size());
                });
                mine.mean("val_loss", loss.weighted ? loss.mean() : loss.value.item<double>(),
                          loss.weight);
            }
            parts_.end_evaluation();
        }
        auto merged = merge(ctx_, mine);
        // A rank without a sample of its own does not know the names that a loss reports.
        if (count < static_cast<std::uint64_t>(ctx_.world_size())) {
            const auto layout = from_first(ctx_, reported.layout());
            if (first == last) reported = report::metric_set::with_layout(layout);
        }
        if (!reported.empty())
            for (auto& m : merge(ctx_, reported)) merged.push_back({"val_" + m.name, m.value});
        if (averaged) swap_average();
        check_evaluation(merged);
        parts_.tell(eval_info{.rank = ctx_.rank(),
                              .step = step_,
                              .metrics = &merged,
                              .seconds = seconds_now() - begin});
        return merged;
    }

    /// The averages in place of the weights on every rank, or back. Ranks may share the weights: all are
    /// done with the old ones before any is changed.
    void swap_average() {
        double here = 0.0;
        all_reduce(ctx_, std::span(&here, 1), dist::reduce_op::sum);
        optimizer_.average()->swap();
        parts_.publish();
    }

    void check_evaluation(const std::vector<metric_value>& merged) {
        result_.val_loss = merged[0].value;
        result_.val_step = step_;
        if (!std::isfinite(result_.val_loss))
            throw error(errc::not_finite, fmt::format("the validation loss is {} after step {}",
                                                      result_.val_loss, step_))
                .with_hint("lower the learning rate, warm up longer or clip harder");
        const auto& best = config_.best_metric;
        if (!saver_ || config_.keep_best < 1 || best == "loss" ||
            report::find_metric(merged, best) != nullptr)
            return;
        std::string known = "loss";
        for (const auto& m : merged) known += ", " + m.name;
        throw error(errc::usage,
                    fmt::format("best_metric '{}' is no number of an evaluation", best))
            .with_hint("there are: " + known);
    }

    [[nodiscard]] std::size_t eval_batch() const {
        if (config_.eval_batch > 0) return static_cast<std::size_t>(config_.eval_batch);
        const auto parts = ctx_.world_size() * config_.accumulation;
        return static_cast<std::size_t>(std::max<std::int64_t>(1, config_.global_batch / parts));
    }

    // ---- checkpoints -------------------------------------------------------------------------

    /// Makes the checkpointer and, if asked for, goes on from the newest one; returns its path.
    std::string open_checkpoints() {
        if (!config_.checkpoints) return {};
        checkpoint_options options;
        options.keep_last = static_cast<std::size_t>(std::max(1, config_.keep_last));
        options.keep_best = static_cast<std::size_t>(std::max(0, config_.keep_best));
        options.metric = config_.best_metric;
        options.lower_is_better = config_.best_is_lowest;
        saver_.emplace(disk_, report_.checkpoints(), options,
                       make_checkpoint_world(ctx_, config_.collective_timeout));
        if (auto text = cadence_notice(config_, held_out_); !text.empty())
            notices_.push_back(std::move(text));
        if (config_.resume != resume_mode::latest && ctx_.attempt() == 0) return {};
        auto found = saver_->load_latest();
        if (!found) return {};
        state_.restore(*found);
        parts_.publish();
        step_ = found->step();
        result_.checkpoint = found->path();
        const auto extra =
            parse_json(found->extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
        result_.loss = extra.value("loss", 0.0);
        if (step_ > total_)
            throw error(errc::usage, fmt::format("the run has {} steps already, {} were asked for",
                                                 step_, total_))
                .with_where(found->path())
                .with_hint("ask for more steps, or another run name");
        const double now = learning_rate(rate_, step_), before = extra.value("next_lr", now);
        if (step_ < total_ && std::abs(now - before) > 1e-9 * std::abs(before))
            notices_.push_back(
                fmt::format("the learning rate of step {} is {:g}, by the schedule before it was "
                            "{:g} (most schedules depend on the number of steps)",
                            step_ + 1, now, before));
        return found->path();
    }

    void save(const std::vector<metric_value>& evaluated) {
        if (!saver_) return;
        parts_.sync_buffers();
        auto what = state_.save(step_, config_.seed,
                                {{"loss", result_.loss}, {"next_lr", learning_rate(rate_, step_)}});
        what.metrics["loss"] = result_.loss;
        for (const auto& m : evaluated) what.metrics[m.name] = m.value;
        const auto saved = saver_->save(what);
        result_.checkpoint = saved.path;
        const checkpoint_info info{.rank = ctx_.rank(),
                                   .step = step_,
                                   .path = saved.path,
                                   .bytes = saved.bytes,
                                   .seconds = saved.seconds};
        report_.saved(info);
        parts_.tell(info);
    }

    void finish_result(double seconds) {
        report::metric_set m;
        m.max("rss", peak_rss_bytes());
        result_.peak_rss_bytes = merge(ctx_, m)[0].value;
        result_.steps = step_;
        result_.seconds = seconds;
        result_.tokens_per_s = train_seconds_ > 0 ? tokens_ / train_seconds_ : 0.0;
        result_.run_name = report_.name();
        result_.run_path = report_.path();
        result_.stopped = stopped_ && step_ < total_;
    }

    fit_parts& parts_;
    context& ctx_;
    const run_config& config_;
    report::metric_set& reported_;
    schedule rate_;
    sampler order_;
    std::uint64_t held_out_; // samples of the evaluation set
    std::uint64_t total_;
    flat_optimizer optimizer_;
    training_state state_;
    reporter report_;
    posix_disk disk_{link_policy::refuse};
    std::optional<checkpointer> saver_;

    std::uint64_t step_ = 0; // finished
    std::uint64_t evaluated_at_ = std::numeric_limits<std::uint64_t>::max();
    bool stopped_ = false;
    std::vector<std::string> notices_; // to be told when the run begins
    std::vector<double> present_;      // by segment, when not all had a gradient; else empty
    double train_seconds_ = 0.0, tokens_ = 0.0;
    fit_result result_;
};

SKEIN_INLINE void tell_peers(const context& ctx) {
    if (ctx.comm() != nullptr) ctx.comm()->abort(to_error(std::current_exception()));
}

SKEIN_INLINE fit_result run_fit(const fit_request& request,
                                const std::function<std::unique_ptr<fit_parts>()>& make) {
    const auto& ctx = *request.ctx;
    try {
        require_same(ctx, all_settings(request));
        sampler order({.samples = request.samples,
                       .batch = static_cast<std::uint64_t>(request.config->global_batch),
                       .seed = request.config->seed},
                      ctx.world_size());
        const auto parts = make();
        try {
            session run(request, *parts, std::move(order));
            return run.all();
        } catch (...) { // the reason itself, before the strategy's destructor ends its exchange
            parts->abort(to_error(std::current_exception()));
            tell_peers(ctx);
            throw;
        }
    } catch (...) {
        tell_peers(ctx); // the first abort counts
        throw;
    }
}

SKEIN_INLINE void begin_training(const context& ctx, const run_config& config) {
    validate(config, ctx.world_size());
    at::set_num_threads(config.threads > 0 ? config.threads : 1);
    keep_freed_memory();
}

} // namespace skein::train::detail

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

#include <sys/resource.h>

#include <fmt/core.h>

namespace skein::train::detail {

using report::metric_value;

SKEIN_INLINE double seconds_now() { return to_seconds(system_clock().now().time_since_epoch()); }

/// The largest resident size of this process so far.
SKEIN_INLINE double peak_rss_bytes() {
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

SKEIN_INLINE fit_parts::~fit_parts() = default;

class session {
public:
    session(const fit_request& request, fit_parts& parts, sampler order)
        : parts_(parts), ctx_(*request.ctx), config_(*request.config), reported_(*request.reported),
          rate_(request.rate), order_(std::move(order)), held_out_(request.held_out),
          total_(static_cast<std::uint64_t>(config_.max_steps)),
          optimizer_(request.options, parts.storage()), state_(parts.storage(), optimizer_, order_),
          report_(ctx_, config_, *request.described) {
        begin_row();
        result_.rank = ctx_.rank();
        result_.val_loss = std::numeric_limits<double>::quiet_NaN();
    }
    session(const session&) = delete;
    session& operator=(const session&) = delete;

    fit_result all() {
        const auto begin = seconds_now();
        const auto resumed_from = open_checkpoints();
        result_.first_step = step_;
        start_info start{.rank = ctx_.rank(),
                         .world_size = ctx_.world_size(),
                         .first_step = step_,
                         .total_steps = total_,
                         .parameters = parts_.storage().trainable(),
                         .run_path = report_.path(),
                         .resumed_from = resumed_from,
                         .strategy = parts_.strategy_name()};
        report_.begin(start);
        if (!jump_.empty()) report_.notice(jump_);
        parts_.tell(start);

        parts_.module().train();
        while (step_ < total_ && !stopped_) one_step();
        if (evaluated_at_ != step_ && !stopped_) evaluate();

        report_.finish();
        finish_result(seconds_now() - begin);
        parts_.tell(result_);
        return result_;
    }

private:
    // ---- one optimizer step ------------------------------------------------------------------

    void one_step() {
        const auto begin = seconds_now();
        auto& metrics = reported_;
        const auto slice = order_.next(ctx_.rank(), ctx_.world_size());
        seed_step(config_.seed, step_, ctx_.rank());

        parts_.begin_step();
        const double loss_sum = forward_backward(slice, metrics);
        parts_.finish_backward();

        const double lr = learning_rate(rate_, step_);
        const double mine = squared_norm(parts_.storage().grads_P());
        const double norm = std::sqrt(parts_.squared_norm(mine));
        const double share = static_cast<double>(slice.ids.size());
        const double my_loss = share > 0 ? loss_sum / share : 0.0;
        metrics.mean("loss", my_loss, share);
        metrics.last("lr", lr)
            .last("grad_norm", norm)
            .max("stop", ctx_.stop_requested() ? std::max(1.0, double(ctx_.stop_signal())) : 0.0);
        auto merged = merge(ctx_, metrics);
        const double loss = *report::find_metric(merged, "loss");
        // Equal on all ranks, so that all of them leave here together, with nothing changed yet.
        if (!std::isfinite(norm) || !std::isfinite(loss)) not_finite(my_loss, norm, lr);

        const auto clipped = clip_to(norm, config_.clip);
        optimizer_.step(lr, clipped.scale);
        parts_.publish();
        step_ += 1;
        const double stop = *report::find_metric(merged, "stop"); // the same decision on every rank
        stopped_ = stop > 0.0;
        if (stop > 1.0) result_.stop_signal = static_cast<int>(stop);
        std::erase_if(merged, [](const metric_value& m) { return m.name == "stop"; });
        begin_row();
        step_info now{.rank = ctx_.rank(),
                      .step = step_,
                      .loss = loss,
                      .lr = lr,
                      .grad_norm = norm,
                      .seconds = seconds_now() - begin,
                      .tokens_per_s = 0,
                      .metrics = &merged};
        const double per_sample =
            config_.tokens_per_sample > 0 ? double(config_.tokens_per_sample) : 1.0;
        const double tokens = static_cast<double>(slice.global_batch) * per_sample;
        now.tokens_per_s = now.seconds > 0 ? tokens / now.seconds : 0.0;
        result_.loss = now.loss;
        train_seconds_ += now.seconds;
        tokens_ += tokens;
        parts_.tell(now);
        end_of_step(now);
    }

    /// Forward and backward of this rank's samples; returns the sum of their losses.
    double forward_backward(const batch_slice& slice, report::metric_set& metrics) {
        const auto parts = static_cast<int>(config_.accumulation);
        double loss_sum = 0.0;
        for (int part = 0; part < parts; ++part) {
            const auto [first, last] = rank_range(slice.ids.size(), part, parts);
            parts_.begin_micro(part + 1 == parts);
            if (first == last) continue; // finish_backward() sends what no hook has sent
            const auto count = last - first;
            const auto ids = std::span<const std::uint64_t>(slice.ids).subspan(first, count);
            const at::Tensor loss = parts_.loss(ids, metrics);
            SKEIN_CHECK(loss.defined() && loss.numel() == 1,
                        "the loss must be one number, it has {}",
                        loss.defined() ? loss.numel() : 0);
            // Weighted by its share of the global batch, the sum over ranks is the batch's mean.
            const double weight =
                static_cast<double>(count) / static_cast<double>(slice.global_batch);
            loss.backward(at::full_like(loss, weight));
            loss_sum += loss.item<double>() * static_cast<double>(count);
        }
        return loss_sum;
    }

    /// Reserves the first columns for the trainer's own numbers; user reports follow them.
    void begin_row() {
        reported_.clear();
        reported_.mean("loss", 0.0, 0.0).last("lr", 0.0).last("grad_norm", 0.0).max("stop", 0.0);
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
        const auto all = held_out_;
        evaluated_at_ = step_;
        if (all == 0) return {};
        const auto begin = seconds_now();
        const auto limit = static_cast<std::uint64_t>(config_.eval_samples);
        const auto count = limit > 0 ? std::min(all, limit) : all;
        const auto [first, last] = rank_range(count, ctx_.rank(), ctx_.world_size());
        report::metric_set mine, reported;
        {
            at::NoGradGuard no_grad;
            parts_.sync_buffers();
            parts_.module().eval();
            mine.mean("val_loss", 0.0, 0.0);
            std::vector<std::uint64_t> ids;
            for (auto at = first; at < last; at += ids.size()) {
                ids.clear();
                for (auto id = at; id < last && ids.size() < eval_batch(); ++id) ids.push_back(id);
                const auto loss = parts_.held_out_loss(ids, reported);
                mine.mean("val_loss", loss.item<double>(), static_cast<double>(ids.size()));
            }
            parts_.module().train();
        }
        auto merged = merge(ctx_, mine);
        // A rank without a sample of its own cannot know the names that a loss reports.
        if (count >= static_cast<std::uint64_t>(ctx_.world_size()) && !reported.empty())
            for (auto& m : merge(ctx_, reported)) merged.push_back({"val_" + m.name, m.value});
        result_.val_loss = merged[0].value;
        result_.val_step = step_;
        if (!std::isfinite(result_.val_loss))
            throw error(errc::not_finite, fmt::format("the validation loss is {} after step {}",
                                                      result_.val_loss, step_))
                .with_hint("lower the learning rate, warm up longer or clip harder");
        parts_.tell(eval_info{.rank = ctx_.rank(),
                              .step = step_,
                              .metrics = &merged,
                              .seconds = seconds_now() - begin});
        return merged;
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
        if (config_.resume != resume_mode::latest && ctx_.attempt() == 0) return {};
        auto found = saver_->load_latest();
        if (!found) return {};
        state_.restore(*found);
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
            jump_ =
                fmt::format("the learning rate of step {} is {:g}, by the schedule before it was "
                            "{:g} (most schedules depend on the number of steps)",
                            step_ + 1, now, before);
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
        parts_.tell(checkpoint_info{.rank = ctx_.rank(),
                                    .step = step_,
                                    .path = saved.path,
                                    .bytes = saved.bytes,
                                    .seconds = saved.seconds});
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
    posix_disk disk_;
    std::optional<checkpointer> saver_;

    std::uint64_t step_ = 0; // finished
    std::uint64_t evaluated_at_ = std::numeric_limits<std::uint64_t>::max();
    bool stopped_ = false;
    std::string jump_; // of the learning rate, at a resume
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
        sampler order({.samples = request.samples,
                       .batch = static_cast<std::uint64_t>(request.config->global_batch),
                       .seed = request.config->seed},
                      ctx.world_size());
        const auto parts = make();
        session run(request, *parts, std::move(order));
        try {
            return run.all();
        } catch (...) {
            tell_peers(
                ctx); // the reason itself, before the strategy's destructor ends its exchange
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

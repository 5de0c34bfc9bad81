// SPDX-License-Identifier: Apache-2.0
#pragma once
// One fit(): the loop behind Trainer. Included by train/trainer.hpp only.

#include <skein/core/clock.hpp>
#include <skein/train/trainer.hpp>

#include <sys/resource.h>

namespace skein::train::detail {

[[nodiscard]] inline double seconds_now() {
    return to_seconds(system_clock().now().time_since_epoch());
}

/// The largest resident size of this process so far.
[[nodiscard]] inline double peak_rss_bytes() {
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

/// "DDP" of a strategy that says so.
template <class Strategy>
[[nodiscard]] std::string strategy_name() {
    if constexpr (requires { std::string(Strategy::name); })
        return std::string(Strategy::name);
    else
        return {};
}

template <class TrainerType, class Model, class Loss, class Data, class HeldOut>
class run_of {
    using strategy_type = typename TrainerType::strategy_type;
    static_assert(
        loss_function<Loss, Model, batch_of<Data>>,
        "the loss must be callable as loss(model, batch) or loss(model, batch, metric_set&) "
        "and return a scalar tensor");

public:
    run_of(TrainerType& trainer, Model& model, optimizer_options options, schedule rate, Loss& loss,
           const Data& data, const HeldOut& held_out)
        : trainer_(trainer), ctx_(*trainer.ctx_), config_(trainer.config_), model_(model),
          loss_(loss), data_(data), held_out_(held_out), rate_(std::move(rate)),
          order_({.samples = static_cast<std::uint64_t>(data.size()),
                  .batch = static_cast<std::uint64_t>(config_.global_batch),
                  .seed = config_.seed},
                 ctx_.world_size()),
          total_(static_cast<std::uint64_t>(config_.max_steps)), strategy_(ctx_, *model),
          optimizer_(std::move(options), strategy_.storage()),
          state_(strategy_.storage(), optimizer_, order_),
          report_(ctx_, config_, trainer.settings_) {
        begin_row();
        result_.rank = ctx_.rank();
        result_.val_loss = std::numeric_limits<double>::quiet_NaN();
    }

    fit_result all() {
        const auto begin = seconds_now();
        const auto resumed_from = open_checkpoints();
        result_.first_step = step_;
        start_info start{.rank = ctx_.rank(),
                         .world_size = ctx_.world_size(),
                         .first_step = step_,
                         .total_steps = total_,
                         .parameters = strategy_.storage().trainable(),
                         .run_path = report_.path(),
                         .resumed_from = resumed_from,
                         .strategy = strategy_name<strategy_type>()};
        report_.begin(start);
        if (!jump_.empty()) report_.notice(jump_);
        trainer_.tell(start);

        model_->train();
        while (step_ < total_ && !stopped_) one_step();
        if (evaluated_at_ != step_ && !stopped_) evaluate();

        report_.finish();
        finish_result(seconds_now() - begin);
        trainer_.tell(result_);
        return result_;
    }

private:
    // ---- one optimizer step ------------------------------------------------------------------

    void one_step() {
        const auto begin = seconds_now();
        auto& metrics = trainer_.reported_;
        const auto slice = order_.next(ctx_.rank(), ctx_.world_size());
        seed_step(config_.seed, step_, ctx_.rank());

        strategy_.begin_step();
        const double loss_sum = forward_backward(slice, metrics);
        strategy_.finish_backward();

        const double lr = learning_rate(rate_, step_);
        const double mine = squared_norm(strategy_.storage().grads_P());
        const double norm = std::sqrt(strategy_.squared_norm(mine));
        const double share = static_cast<double>(slice.ids.size());
        const double my_loss = share > 0 ? loss_sum / share : 0.0;
        metrics.mean("loss", my_loss, share);
        metrics.last("lr", lr)
            .last("grad_norm", norm)
            .max("stop", ctx_.stop_requested() ? std::max(1.0, double(ctx_.stop_signal())) : 0.0);
        auto merged = merge(ctx_, metrics);
        const double loss = *find_metric(merged, "loss");
        // Equal on all ranks, so that all of them leave here together, with nothing changed yet.
        if (!std::isfinite(norm) || !std::isfinite(loss)) not_finite(my_loss, norm, lr);

        const auto clipped = clip_to(norm, config_.clip);
        optimizer_.step(lr, clipped.scale);
        strategy_.publish();
        step_ += 1;
        const double stop = *find_metric(merged, "stop"); // the same decision on every rank
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
        trainer_.tell(now);
        end_of_step(now);
    }

    /// Forward and backward of this rank's samples; returns the sum of their losses.
    double forward_backward(const batch_slice& slice, metric_set& metrics) {
        const auto parts = static_cast<int>(config_.accumulation);
        double loss_sum = 0.0;
        for (int part = 0; part < parts; ++part) {
            const auto [first, last] = rank_range(slice.ids.size(), part, parts);
            strategy_.begin_micro(part + 1 == parts);
            if (first == last) continue; // finish_backward() sends what no hook has sent
            const auto count = last - first;
            const auto ids = std::span<const std::uint64_t>(slice.ids).subspan(first, count);
            const at::Tensor loss = call_loss(data_.batch(ids), metrics);
            SKEIN_CHECK(loss.defined() && loss.numel() == 1,
                        "the loss must be one number, it has {}",
                        loss.defined() ? loss.numel() : 0);
            // Weighted by its share of the global batch, the sum over ranks is the batch's mean.
            const double weight =
                static_cast<double>(count) / static_cast<double>(slice.global_batch);
            loss.backward(at::full_like(loss, weight));
            loss_sum += loss.template item<double>() * static_cast<double>(count);
        }
        return loss_sum;
    }

    template <class Batch>
    at::Tensor call_loss(const Batch& batch, metric_set& metrics) {
        if constexpr (std::invocable<Loss&, Model&, const Batch&, metric_set&>)
            return loss_(model_, batch, metrics);
        else
            return loss_(model_, batch);
    }

    /// Reserves the first columns for the trainer's own numbers; user reports follow them.
    void begin_row() {
        trainer_.reported_.clear();
        trainer_.reported_.mean("loss", 0.0, 0.0)
            .last("lr", 0.0)
            .last("grad_norm", 0.0)
            .max("stop", 0.0);
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
        const auto all = static_cast<std::uint64_t>(held_out_.size());
        evaluated_at_ = step_;
        if (all == 0) return {};
        const auto begin = seconds_now();
        const auto limit = static_cast<std::uint64_t>(config_.eval_samples);
        const auto count = limit > 0 ? std::min(all, limit) : all;
        const auto [first, last] = rank_range(count, ctx_.rank(), ctx_.world_size());
        metric_set mine, reported;
        {
            at::NoGradGuard no_grad;
            strategy_.sync_buffers();
            model_->eval();
            mine.mean("val_loss", 0.0, 0.0);
            std::vector<std::uint64_t> ids;
            for (auto at = first; at < last; at += ids.size()) {
                ids.clear();
                for (auto id = at; id < last && ids.size() < eval_batch(); ++id) ids.push_back(id);
                const auto loss = call_loss(held_out_.batch(ids), reported);
                mine.mean("val_loss", loss.template item<double>(),
                          static_cast<double>(ids.size()));
            }
            model_->train();
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
        trainer_.tell(eval_info{.rank = ctx_.rank(),
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
        result_.loss = found->extra().value("loss", 0.0);
        if (step_ > total_)
            throw error(errc::usage, fmt::format("the run has {} steps already, {} were asked for",
                                                 step_, total_))
                .with_where(found->path())
                .with_hint("ask for more steps, or another run name");
        const double now = learning_rate(rate_, step_),
                     before = found->extra().value("next_lr", now);
        if (step_ < total_ && std::abs(now - before) > 1e-9 * std::abs(before))
            jump_ =
                fmt::format("the learning rate of step {} is {:g}, by the schedule before it was "
                            "{:g} (most schedules depend on the number of steps)",
                            step_ + 1, now, before);
        return found->path();
    }

    void save(const std::vector<metric_value>& evaluated) {
        if (!saver_) return;
        strategy_.sync_buffers();
        auto what = state_.save(step_, config_.seed);
        what.extra["loss"] = result_.loss;
        what.extra["next_lr"] = learning_rate(rate_, step_);
        what.metrics["loss"] = result_.loss;
        for (const auto& m : evaluated) what.metrics[m.name] = m.value;
        const auto saved = saver_->save(what);
        result_.checkpoint = saved.path;
        trainer_.tell(checkpoint_info{.rank = ctx_.rank(),
                                      .step = step_,
                                      .path = saved.path,
                                      .bytes = saved.bytes,
                                      .seconds = saved.seconds});
    }

    void finish_result(double seconds) {
        metric_set m;
        m.max("rss", peak_rss_bytes());
        result_.peak_rss_bytes = merge(ctx_, m)[0].value;
        result_.steps = step_;
        result_.seconds = seconds;
        result_.tokens_per_s = train_seconds_ > 0 ? tokens_ / train_seconds_ : 0.0;
        result_.run_name = report_.name();
        result_.run_path = report_.path();
        result_.stopped = stopped_ && step_ < total_;
    }

    TrainerType& trainer_;
    context& ctx_;
    const run_config& config_;
    Model& model_;
    Loss& loss_;
    const Data& data_;
    const HeldOut& held_out_;
    schedule rate_;
    sampler order_;
    std::uint64_t total_;
    strategy_type strategy_;
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

} // namespace skein::train::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of one run: draw, compute, agree, apply, commit. What lies between them is in
// detail/session_between.ipp. Used by <skein/train/detail/session.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/feeder.ipp>
#include <skein/train/detail/session_between.ipp>
#include <skein/train/detail/session_clock.ipp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/session_row.ipp>
#include <skein/train/detail/session_shards.ipp>
#include <skein/train/detail/session_world.ipp>
#include <skein/train/elastic_place.hpp>
#include <skein/train/loss_scale.hpp>
#include <skein/train/training_state.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

class session_core {
public:
    /// An error that leaves is told to the peers, with the reason itself and before the strategy's
    /// destructor ends its exchange. The first abort counts.
    template <class Call>
    auto guarded(Call call) {
        try {
            return call();
        } catch (const redo_step&) {
            throw;
        } catch (const rank_left&) { // nobody waits for it
            throw;
        } catch (const state_lost&) { // all ranks alike
            throw;
        } catch (...) {
            const auto why = to_error(std::current_exception());
            tell_unlike(ctx_, why, run_.step + 1, [&](const error& named) { abort(named); });
            abort(why);
            throw;
        }
    }
    void abort(const error& why) noexcept {
        if (run_.parts) run_.parts->abort(why);
        between_.saves().abort(why, place_ != nullptr && is_of_world(why));
    }

    session_core(const session_request& request, const make_parts& make)
        : process_(*request.config), ctx_(*request.ctx), place_(request.ctx->elastic()),
          moving_(request.ctx), config_(*request.config), described_(described_settings(request)),
          reported_(*request.reported), run_{.ctx = ctx_,
                                             .config = config_,
                                             .rate = request.rate,
                                             .plan = plan_of(config_),
                                             .asked = plan_of(config_),
                                             .declared = *request.declared},
          row_(ctx_), clock_(ctx_) {
        guarded([&] {
            reported_.clear();
            settings_ = all_settings(request);
            require_same(ctx_, settings_);
            run_.parts = make();
            if (run_.parts->precision().compute == at::kHalf) run_.scale.emplace();
            run_.optimizer.emplace(request.options, run_.parts->store());
            if (!request.options.more.groups.empty())
                require_same(ctx_, run_.optimizer->effect_hash(),
                             "what the parameter groups match");
            run_.training.emplace(ctx_, config_, reported_, run_.declared);
            if (const int shards = config_.scaling.logical_shards; shards > 0) {
                run_.parts->sum_by_shards(shards);
                shards_.emplace(ctx_, shards, reported_, run_.parts->store());
            }
            if (request.look.is_on)
                run_.look.emplace(request.look, ctx_, *run_.parts, *run_.optimizer);
            between_.open();
            for (const auto& f : run_.parts->store().fixed())
                if (f.is_buffer) buffers_.emplace_back(f.tensor, at::Tensor());
        });
        run_.result.rank = ctx_.rank();
        run_.result.val_loss = std::numeric_limits<double>::quiet_NaN();
    }
    /// Who leaves a loop of their own in the middle of a step, by an exception or not, leaves peers
    /// waiting: they are told before anything here is waited for.
    ~session_core() {
        if (!run_.parts || (phase_ == step_phase::idle && std::uncaught_exceptions() == 0)) return;
        const error why(errc::aborted,
                        fmt::format("rank {} left its session in the middle of step {}",
                                    ctx_.rank(), run_.step + 1));
        abort(why);
    }
    session_core(const session_core&) = delete;
    session_core& operator=(const session_core&) = delete;

    // ---- the run -----------------------------------------------------------------------------

    void begin(std::unique_ptr<input_source> input) {
        if (run_.input)
            throw error(errc::usage, "a session has steps once")
                .with_hint("open another one, or keep what steps() gave");
        begun_ = seconds_now();
        run_.input = std::move(input);
        if (shards_) require_shardable(*run_.input);
        auto data = data_settings(*run_.input, between_.evaluations());
        if (ctx_.world_size() > 1 || place_ != nullptr) {
            auto& from = *run_.input;
            const auto count = from.is_stream() ? 0 : from.size();
            data.push_back(some_samples(
                "training", {count, [&](const auto& ids) { return from.sum_of(ids); }}));
            between_.compare_samples(data);
        }
        require_same(ctx_, data);
        settings_.insert(settings_.end(), data.begin(), data.end());
        run_.feeder.emplace(ctx_, config_, *run_.input);
        if (auto gain = run_.parts->gain()) run_.feeder->go_by_gain(std::move(gain));
        run_.total = run_.feeder->total();
        if (place_ == nullptr) begin_here();
        if (place_ != nullptr) prepare_for_worlds();
        // A model that is in eval mode as a whole is to be trained; a submodule may be so on
        // purpose.
        if (!run_.parts->module().is_training()) run_.parts->module().train();
    }

    /// A run whose last evaluation had failed makes it first.
    void begin_here() {
        const auto due = between_.begin(described_);
        has_state_ = true;
        if (!due) return;
        between_.adopt_end(*due);
        adopt_row(due->row);
        ends_epoch_ = due->ends_epoch;
        told_step_ = due->told_step;
        find_end();
        end_ = step_end::report;
        end_step();
    }

    fit_result finish() {
        if (!run_.input)
            throw error(errc::usage, "a session ends that has not begun")
                .with_hint("ask it for steps() first");
        if (phase_ == step_phase::applied) commit();
        redo();
        if (run_.total == 0 && !run_.stopped) run_.total = run_.step;
        fit_result out;
        while (!in_world([&] { out = between_.finish(begun_, clock_.tokens_per_s()); })) {}
        process_.put_back();
        return out;
    }

    fit_result run(const batch_loss& loss) {
        if (place_ != nullptr && !place_->has_world()) warm_up(loss);
        while (draw())
            (void)in_world([&] {
                try {
                    compute(loss);
                    agree();
                } catch (const redo_step&) {
                    redo();
                    return;
                }
                apply();
                commit();
            });
        return finish();
    }

    // ---- one step ----------------------------------------------------------------------------

    bool draw() {
        expect(step_phase::idle, "draw()");
        if (!run_.input) throw error(errc::usage, "a session draws before steps() or begin()");
        if (place_ == nullptr) return draw_here();
        if (!place_->has_world()) change_world(spmd::world_end::none);
        bool drawn = false;
        while (!in_world([&] { drawn = draw_here(); })) {}
        return drawn;
    }
    bool draw_here() {
        if (run_.stopped || run_.ended) return false;
        ctx_.note_begun();
        clock_.begin_step();
        if (!run_.upcoming) run_.upcoming = draw_batch();
        if (!run_.upcoming) {
            run_.ended = true;
            return false;
        }
        between_.begin_step();
        drawn_ = std::move(run_.upcoming);
        run_.sums.begin_step(drawn_->epoch);
        run_.upcoming.reset();
        run_.feeder->look_ahead(run_.step);
        micro_ = passed_ = 0;
        losses_ = {};
        reported_before_ = reported_;
        begin_epoch_of_metrics();
        run_.training->begin_step();
        at::NoGradGuard no_grad;
        for (auto& [buffer, before] : buffers_) before = buffer.detach().clone();
        clock_.begin_compute();
        run_.parts->begin_step();
        if (shards_) shards_->begin_step();
        if (run_.look) run_.look->begin_step(micro_batches());
        phase_ = step_phase::drawn;
        return true;
    }

    /// The next micro-batch that has samples; those without only take part in the exchange.
    micro_batch* begin_micro() {
        const auto parts = drawn_ ? drawn_->micros.size() : 0;
        const auto all = micro_batches();
        while (drawn_ && micro_ < all) {
            // By the micro-batch's number in the global batch: many ranks draw what one process
            // draws.
            const int first = shards_ ? shards_->own().first : ctx_.rank() * static_cast<int>(all);
            seed_step(config_.seed, run_.step, first + static_cast<int>(micro_));
            if (shards_) {
                if (micro_ > 0) run_.training->keep_shard(micro_ - 1);
                shards_->begin(micro_);
            }
            if (run_.look) run_.look->before_pass(shards_.has_value());
            run_.parts->begin_micro(micro_ + 1 == all);
            if (run_.look) run_.look->begin_pass();
            phase_ = step_phase::computing;
            const auto at = micro_++;
            // finish_backward() sends what no hook has sent.
            if (at < parts && drawn_->micros[at].samples > 0) {
                run_.training->deal();
                return &drawn_->micros[at];
            }
        }
        if (shards_) {
            if (micro_ > 0) run_.training->keep_shard(micro_ - 1);
            shards_->end();
        }
        return nullptr;
    }

    const void* next_micro() {
        if (phase_ != step_phase::drawn && phase_ != step_phase::computing) return nullptr;
        in_hand_ = begin_micro();
        reported_.weigh(in_hand_ != nullptr ? static_cast<double>(in_hand_->samples) : 1.0);
        if (in_hand_ == nullptr) return nullptr;
        return user_code{ctx_.rank(), run_.step + 1}.run("the data",
                                                         [&] { return batch_of(*in_hand_); });
    }

    void backward(const weighted_loss& loss) {
        if (in_hand_ == nullptr)
            throw error(errc::usage, "backward() without a micro-batch in hand")
                .with_hint("call it once for each micro-batch of the step");
        if (loss.weight.defined() && !weighted_)
            throw error(errc::usage, "a weighted loss that was not expected")
                .with_hint("call session.expect_weights() before the first step, on every rank");
        (void)in_world([&] { pass(*std::exchange(in_hand_, nullptr), [&] { return loss; }); });
    }

    /// Everything is summed over the ranks and decided; nothing is changed yet.
    void agree() {
        if (phase_ != step_phase::drawn) expect(step_phase::computing, "agree()");
        if (begin_micro() != nullptr || in_hand_ != nullptr || passed_ < drawn_->with_samples())
            throw error(
                errc::usage,
                fmt::format("session.backward() was called for {} of {} micro-batches of step {}",
                            passed_, drawn_->with_samples(), run_.step + 1));
        reported_.weigh(1.0); // no batch is in hand
        run_.feeder->look_ahead(run_.step);
        clock_.count_overlap(clock_.waiting([&] { run_.parts->finish_backward(); }));
        if (run_.look) run_.look->end();
        // Whoever goes on in another world, with other ranks, has those behind shard 0.
        if (shards_ && shards_->has_buffers()) run_.parts->sync_buffers();

        const double global_batch = static_cast<double>(drawn_->global_batch);
        now_ = {.rank = ctx_.rank(),
                .step = run_.step + 1,
                .lr = run_.applied_rate(drawn_->global_batch),
                .batch = drawn_->global_batch,
                .micro_batches = run_.plan.micro_batches};
        const double mine = run_.parts->store().own_squared_norm();
        clock_.waiting([&] {
            divisor_ = scale();
            if (weighted_)
                divisor_ *= weight_per_sample(whole_weight(), global_batch, run_.step + 1);
            now_.grad_norm = std::sqrt(run_.parts->squared_norm(mine)) / divisor_;
        });
        if (place_ != nullptr) {
            run_.parts->sync_buffers(); // of the step: whoever is lost next, those of rank 0 count
            require_one_stream();
        }
        if (run_.training->shares()) run_.training->share_step();
        exchange_row();
        phase_ = step_phase::agreed;
    }

    void apply() {
        expect(step_phase::agreed, "apply()");
        const bool leaves_out = !judge() || overflowed();
        const auto begin = seconds_now();
        const double scale = clip_to(now_.grad_norm, run_.plan.clip).scale * divisor_;
        if (!leaves_out) run_.optimizer->step(now_.lr, scale, present_, config_.clip_value);
        if (run_.look) run_.look->end_step(!leaves_out);
        if (run_.scale) run_.scale->update(!overflowed());
        if (run_.scale && run_.scale->overflows() >= loss_scale::most_overflows)
            always_overflows(*run_.scale, run_.step + 1);
        clock_.time().optimizer = seconds_now() - begin;
        phase_ = step_phase::applied;
        clock_.waiting([&] { run_.parts->publish(); });
    }

    void commit() {
        expect(step_phase::applied, "commit()");
        commit_here();
        if (row_.saves() == save_word::none) between_.tell_saved(between_.saves().take());
        end_step();
        if (place_ != nullptr && row_.pauses() && !run_.stopped && !run_.ended && !run_.is_last())
            change_world(spmd::world_end::paused);
    }
    /// The part that asks no other rank.
    void commit_here() {
        if (run_.training->shares()) run_.training->take_step();
        run_.step += 1;
        run_.feeder->commit(*drawn_, run_.step);
        run_.factor = 1.0;
        reported_.clear();
        run_.stopped = row_.stops();
        run_.hurries = row_.hurries();
        between_.saves().hear(row_.saves());
        if (row_.stop_signal() > 0) run_.result.stop_signal = row_.stop_signal();
        run_.result.loss = now_.loss;
        clock_.end_step(now_, drawn_->global_batch, config_.tokens_per_sample);
        ends_epoch_ = run_.feeder->ends_epoch(*drawn_);
        run_.epoch = drawn_->epoch;
        run_.sums.take_step(row_.values());
        drawn_.reset();
        phase_ = step_phase::idle;
        end_ = step_end::decide;
        if (run_.total > 0) run_.total = run_.feeder->total();
        run_.row = {row_.values(), {}};
        run_.word = row_.word();
        now_.word = run_.word;
        now_.metrics = &run_.row.values;
        now_.arrays = &run_.row.arrays;
    }
    /// What comes behind the step that is committed, and was not done yet.
    void end_step() {
        if (end_ == step_end::decide) {
            find_end();
            between_.measure(ends_epoch_);
            if (std::exchange(told_step_, run_.step) != run_.step) between_.tell_step(now_);
            find_end(); // by a plan that was changed
            end_ = step_end::report;
        }
        if (end_ == step_end::report) finish_step();
        end_ = step_end::nothing;
    }

    void complete() {
        (void)in_world([&] {
            if (phase_ == step_phase::drawn || phase_ == step_phase::computing) agree();
            if (phase_ == step_phase::agreed) apply();
            if (phase_ == step_phase::applied) commit();
        });
    }

    void redo() {
        if (phase_ == step_phase::idle) return;
        if (phase_ == step_phase::applied)
            throw error(errc::usage,
                        fmt::format("step {} is applied: it cannot be taken back", run_.step + 1));
        if (phase_ == step_phase::computing) {
            while (micro_ < micro_batches()) (void)begin_micro();
            run_.parts->finish_backward(); // the others wait for our part of the exchange
        }
        take_back();
    }

    void rebind();
    void use_evaluation(std::string name, sample_range data, const evaluation_options& how,
                        numbered_loss loss, bool reports) {
        if (run_.input)
            throw error(errc::usage, "an evaluation set for a session that has begun")
                .with_hint("call evaluate_on() before the first step");
        between_.evaluate_on(std::move(name), std::move(data), how, std::move(loss), reports);
    }
    [[nodiscard]] stage& training() noexcept { return run_.training->stage(); }
    void expect_weights() noexcept { weighted_ = true; }
    void ask_stop(action wanted) { run_.ask_stop(wanted); }
    report::metric_set& reported() noexcept { return reported_; }
    [[nodiscard]] step_phase phase() const noexcept { return phase_; }
    [[nodiscard]] const run_state& now() const noexcept { return run_; }
    [[nodiscard]] double micro_loss() const noexcept { return losses_.mean(); }

private:
    // ---- worlds: bodies in detail/session_worlds.ipp ------------------------------------------

    void prepare_for_worlds();
    void require_one_stream();
    void warm_up(const batch_loss& loss);
    void compute(const batch_loss& loss, bool all = true);
    template <class Work>
    bool in_world(Work work);
    void change_world(spmd::world_end last);
    void enter_world(world_news news, double begin);
    void take_state(const world_plan& plan, world_news& news);
    [[nodiscard]] carried_state carry();
    void adopt_row(const last_row& row);
    void adopt(const carried_state& from);

    /// Is this the last step? A stream without a size tells by its next batch.
    void find_end() {
        if (run_.total > 0 || run_.stopped || run_.ended || run_.upcoming) return;
        run_.upcoming = draw_batch();
        run_.ended = !run_.upcoming.has_value();
    }
    /// A stream may show by its next batch only that an epoch is over; so may a batch that has grown
    /// and leaves the rest of it out.
    void begin_epoch_of_metrics() {
        if (run_.input->is_stream() || run_.feeder->units())
            run_.training->begin_epoch(drawn_->epoch);
        else
            run_.training->set_epoch(drawn_->epoch);
    }

    /// The step that was drawn has not been.
    void take_back() {
        at::NoGradGuard no_grad;
        for (auto& [buffer, before] : buffers_) buffer.copy_(before);
        reported_ = reported_before_;
        run_.training->take_back();
        if (run_.look) run_.look->forget();
        drawn_.reset();
        in_hand_ = nullptr;
        run_.feeder->rewind();
        clock_.forget_compute();
        phase_ = step_phase::idle;
        run_.sums.take_back();
    }

    void expect(step_phase wanted, const char* call) const { require_phase(phase_, wanted, call); }

    [[nodiscard]] std::optional<drawn_batch> draw_batch() {
        const auto begin = seconds_now();
        auto batch = run_.feeder->next(run_.step);
        clock_.time().data += seconds_now() - begin;
        return batch;
    }

    [[nodiscard]] const void* batch_of(micro_batch& micro) {
        const auto begin = seconds_now();
        const void* const batch = run_.feeder->batch_of(micro);
        clock_.time().data += seconds_now() - begin;
        clock_.begin_forward();
        return batch;
    }

    /// Loss and backward pass of one micro-batch.
    template <class Loss>
    void pass(const micro_batch& micro, Loss get) {
        const user_code here{ctx_.rank(), run_.step + 1};
        clock_.begin_forward();
        const auto loss = here.run("the loss", [&] { return checked_loss(get(), micro.samples); });
        clock_.end_forward();
        const auto forward_end = seconds_now();
        // A mean is weighted by its share of the global batch, so that the sum over ranks is the
        // batch's mean. A sum over weights is divided by them when all are known.
        const double share = (loss.weighted ? 1.0 : static_cast<double>(micro.samples)) /
                             static_cast<double>(drawn_->global_batch) * scale();
        here.run("the backward pass",
                 [&] { loss.value.backward(at::full_like(loss.value, share)); });
        clock_.time().backward += seconds_now() - forward_end;
        clock_.end_pass(micro_ == micro_batches());
        losses_.add(loss);
        if (shards_) shards_->add(loss);
        if (run_.look) run_.look->weigh(loss.weight / static_cast<double>(drawn_->global_batch));
        passed_ += 1;
    }
    /// Of this rank in this step.
    [[nodiscard]] std::size_t micro_batches() const {
        return static_cast<std::size_t>(shards_ ? shards_->own().size()
                                                : static_cast<int>(run_.plan.micro_batches));
    }
    /// Of the losses of all ranks. Collective.
    [[nodiscard]] double whole_weight();

    // ---- what the ranks agree on -------------------------------------------------------------

    /// The row of the step, equal on all ranks, and what they decide with it: whether the numbers
    /// are finite, whether to stop, which parameters had a gradient. Nothing is changed before.
    void exchange_row() {
        report::metric_set row;
        if (shards_)
            row.mean("loss", 0.0, 0.0); // theirs are beside it
        else
            row.mean("loss", losses_.mean(), losses_.weight);
        row.last("lr", now_.lr).last("grad_norm", now_.grad_norm);
        if (run_.scale) row.last("loss_scale", scale());
        const auto& touched = run_.parts->store().touched();
        const bool all_touched = std::ranges::find(touched, 0.0) == touched.end();
        if (place_ != nullptr) place_->job().wait_while_held();
        const double stop = stop_word();
        if (run_.parts->changes_batch())
            row.last("global_batch", static_cast<double>(run_.plan.global_batch));
        if (run_.look) run_.look->add_to(row, shards_ ? &*shards_ : nullptr, divisor_);
        const bool pauses = place_ != nullptr && place_->job().change_wanted();
        row_.exchange(std::move(row), reported_, shards_ ? &*shards_ : nullptr, stop, all_touched,
                      run_.decided(), pauses, between_.saves().word(), *run_.parts, now_, clock_);
        if (!row_.same_calls()) calls_differ(ctx_, run_.step + 1);
        if (run_.look) run_.look->read(row_.values(), scale(), divisor_, now_);
        if (row_.saves() == save_word::failed) between_.saves().fail();
        if (!row_.same_decisions()) plans_differ(ctx_, run_, run_.step + 1);
        if (!run_.scale && !is_finite() && !run_.parts->judges())
            not_finite(ctx_, losses_.mean(), now_);
        if (row_.most_norm() != row_.least_norm() && is_finite())
            come_apart(run_.step + 1, row_.least_norm(), row_.most_norm());
        present_.clear();
        if (row_.some_untouched()) { // rarely: who had which
            present_ = touched;
            all_reduce(ctx_, present_, dist::reduce_op::max);
        }
    }

    /// What this rank says about the end of the run.
    [[nodiscard]] double stop_word() const;
    [[nodiscard]] double scale() const noexcept { return run_.scale ? run_.scale->value() : 1.0; }
    [[nodiscard]] bool is_finite() const noexcept {
        return std::isfinite(now_.loss) && std::isfinite(now_.grad_norm);
    }
    /// The step is left out: on every rank, because the norm is the same on all.
    [[nodiscard]] bool overflowed() const noexcept { return run_.scale && !is_finite(); }
    /// Asks the callbacks about the step that is agreed on; false: it is left out. Throws when it
    /// ends the run.
    [[nodiscard]] bool judge() {
        run_.left_out = false;
        if (!run_.parts->judges() || overflowed()) return true;
        now_.metrics = &row_.values();
        now_.plan = &run_.plan;
        std::string rule;
        const auto said = run_.parts->judge(now_, rule);
        run_.left_out = said.what == verdict::leave_out;
        if (run_.left_out) between_.left_out(now_.step, rule, said.why);
        if (said.what == verdict::end)
            throw error(errc::not_finite,
                        fmt::format("{} ends the run at step {}: {}", rule, now_.step, said.why))
                .with_hint("go on from an earlier checkpoint with a lower learning rate or a "
                           "harder clip; restarting would give the same");
        if (!run_.scale && !is_finite() && !run_.left_out) not_finite(ctx_, losses_.mean(), now_);
        return !run_.left_out;
    }

    /// Evaluation, files and checkpoint, which a world that breaks meanwhile leaves to be done.
    void finish_step() {
        if (run_.stopped && run_.result.stop_signal == 0)
            run_.result.stop_reason = row_.reason(run_.stop_reason);
        between_.end_of_step(now_, [this] { return carry(); });
    }

    process_settings process_; // first: until all else is gone
    const context& ctx_;
    elastic_place* const place_; // null: the ranks stay
    context* const moving_;      // ctx_, which place_ brings into other worlds
    const run_config& config_;
    std::vector<spmd::setting> settings_; // that all ranks must have alike
    bool has_state_ = false, is_torn_ = false, weighted_ = false;
    std::string reason_; // the world broke, as it was seen here
    report::settings described_;
    report::metric_set& reported_;
    run_state run_;
    between_steps between_{run_};
    step_end end_ = step_end::nothing; // of the step that was committed last
    bool ends_epoch_ = false;          // that step
    std::uint64_t told_step_ = 0;      // to the callbacks

    // The step that is not committed
    step_phase phase_ = step_phase::idle;
    std::optional<drawn_batch> drawn_;
    std::size_t micro_ = 0, passed_ = 0; // micro-batches that were begun, and that had a loss
    micro_batch* in_hand_ = nullptr;
    loss_sum losses_;
    double divisor_ = 1.0;
    step_info now_;
    row_exchange row_;
    std::optional<step_shards> shards_; // logical ones, when they are asked for
    std::vector<double> present_;       // by segment, when not all had a gradient; else empty
    report::metric_set reported_before_;
    std::vector<std::pair<at::Tensor, at::Tensor>> buffers_; // and their values when it was drawn

    double begun_ = 0.0;
    step_clock clock_;
};

} // namespace skein::train::detail

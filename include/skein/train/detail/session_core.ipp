// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of one run, and what comes between them. Used by <skein/train/detail/session.ipp>
// alone.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/feeder.ipp>
#include <skein/train/detail/session_clock.ipp>
#include <skein/train/detail/session_evaluation.ipp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/session_row.ipp>
#include <skein/train/loss_scale.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/sampler.hpp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>

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
        } catch (...) {
            const auto why = to_error(std::current_exception());
            abort(why);
            throw;
        }
    }
    void abort(const error& why) noexcept {
        if (parts_) parts_->abort(why);
        ctx_.abort(why);
    }

    session_core(const session_request& request, const make_parts& make)
        : ctx_(*request.ctx), config_(*request.config), described_(described_settings(request)),
          reported_(*request.reported), rate_(request.rate), row_(ctx_), clock_(ctx_) {
        guarded([&] {
            reported_.clear();
            require_same(ctx_, all_settings(request));
            parts_ = make();
            if (parts_->precision().compute == at::kHalf) scale_.emplace();
            optimizer_.emplace(request.options, parts_->store());
            if (!request.options.more.groups.empty())
                require_same(ctx_, optimizer_->effect_hash(), "what the parameter groups match");
            evaluator_.emplace(*parts_, ctx_, config_);
            for (const auto& f : parts_->store().fixed())
                if (f.is_buffer) buffers_.emplace_back(f.tensor, at::Tensor());
        });
        result_.rank = ctx_.rank();
        result_.val_loss = std::numeric_limits<double>::quiet_NaN();
    }
    /// Who leaves a loop of their own in the middle of a step, by an exception or not, leaves peers
    /// waiting: they are told before anything here is waited for.
    ~session_core() {
        if (!parts_ || (phase_ == step_phase::idle && std::uncaught_exceptions() == 0)) return;
        const error why(errc::aborted,
                        fmt::format("rank {} left its session in the middle of step {}",
                                    ctx_.rank(), step_ + 1));
        abort(why);
    }
    session_core(const session_core&) = delete;
    session_core& operator=(const session_core&) = delete;

    // ---- the run -----------------------------------------------------------------------------

    void begin(std::unique_ptr<input_source> input) {
        if (input_)
            throw error(errc::usage, "a session has steps once")
                .with_hint("open another one, or keep what steps() gave");
        begun_ = seconds_now();
        input_ = std::move(input);
        require_same(ctx_, data_settings(*input_, evaluator_->samples()));
        feeder_.emplace(ctx_, config_, *input_);
        total_ = feeder_->total();
        state_.emplace(parts_->store(), *optimizer_, feeder_->order());
        report_.emplace(ctx_, config_, described_);
        const auto resumed_from = open_checkpoints();
        result_.first_step = step_;
        const auto start = start_info_of(resumed_from);
        report_->begin(start);
        for (const auto& text : notices_) report_->notice(text);
        if (ctx_.is_first()) tell_state(*report_, ctx_, config_, *parts_, *optimizer_);
        parts_->tell(start);
        // A model that is in eval mode as a whole is to be trained; a submodule may be so on
        // purpose.
        if (!parts_->module().is_training()) parts_->module().train();
    }

    fit_result finish() {
        if (!input_)
            throw error(errc::usage, "a session ends that has not begun")
                .with_hint("ask it for steps() first");
        if (phase_ == step_phase::applied) commit();
        redo();
        if (total_ == 0 && !stopped_) total_ = step_;
        feeder_->quiet();
        if (evaluated_at_ != step_ && !stopped_) (void)evaluate();
        if (!result_.stop_reason.empty())
            report_->note(fmt::format("stopped after step {}: {}", step_, result_.stop_reason));
        report_->finish();
        if (auto* const average = optimizer_->average(); average && average->options().keep)
            swap_average(ctx_, *average, *parts_);
        parts_->finish();
        finish_result(seconds_now() - begun_);
        parts_->tell(result_);
        leave_screen(ctx_, config_, result_);
        return result_;
    }

    fit_result run(const batch_loss& loss) {
        while (draw()) {
            try {
                while (auto* const micro = begin_micro())
                    pass(*micro, [&] {
                        reported_.weigh(static_cast<double>(micro->samples));
                        auto value = loss(batch_of(*micro), reported_);
                        micro->value.reset(); // the graph keeps what it needs
                        return value;
                    });
                agree();
            } catch (const redo_step&) {
                redo();
                continue;
            }
            apply();
            commit();
        }
        return finish();
    }

    // ---- one step ----------------------------------------------------------------------------

    bool draw() {
        expect(step_phase::idle, "draw()");
        if (!input_) throw error(errc::usage, "a session draws before steps() or begin()");
        if (stopped_ || ended_) return false;
        ctx_.note_begun();
        clock_.begin_step();
        if (!upcoming_) upcoming_ = draw_batch();
        if (!upcoming_) {
            ended_ = true;
            return false;
        }
        drawn_ = std::move(upcoming_);
        upcoming_.reset();
        feeder_->look_ahead(step_);
        micro_ = passed_ = 0;
        losses_ = {};
        reported_before_ = reported_;
        at::NoGradGuard no_grad;
        for (auto& [buffer, before] : buffers_) before = buffer.detach().clone();
        clock_.begin_compute();
        parts_->begin_step();
        phase_ = step_phase::drawn;
        return true;
    }

    /// The next micro-batch that has samples; those without only take part in the exchange.
    micro_batch* begin_micro() {
        const auto parts = drawn_ ? drawn_->micros.size() : 0;
        const auto all = static_cast<std::size_t>(config_.accumulation);
        while (drawn_ && micro_ < all) {
            // By the micro-batch's number in the global batch: many ranks draw what one process
            // draws.
            seed_step(config_.seed, step_,
                      ctx_.rank() * static_cast<int>(all) + static_cast<int>(micro_));
            parts_->begin_micro(micro_ + 1 == all);
            phase_ = step_phase::computing;
            const auto at = micro_++;
            // finish_backward() sends what no hook has sent.
            if (at < parts && drawn_->micros[at].samples > 0) return &drawn_->micros[at];
        }
        return nullptr;
    }

    const void* next_micro() {
        if (phase_ != step_phase::drawn && phase_ != step_phase::computing) return nullptr;
        in_hand_ = begin_micro();
        reported_.weigh(in_hand_ != nullptr ? static_cast<double>(in_hand_->samples) : 1.0);
        if (in_hand_ == nullptr) return nullptr;
        return user_code{ctx_.rank(), step_ + 1}.run("the data",
                                                     [&] { return batch_of(*in_hand_); });
    }

    void backward(const weighted_loss& loss) {
        if (in_hand_ == nullptr)
            throw error(errc::usage, "backward() without a micro-batch in hand")
                .with_hint("call it once for each micro-batch of the step");
        if (loss.weight.defined() && !weighted_)
            throw error(errc::usage, "a weighted loss that was not expected")
                .with_hint("call session.expect_weights() before the first step, on every rank");
        pass(*std::exchange(in_hand_, nullptr), [&] { return loss; });
    }

    /// Everything is summed over the ranks and decided; nothing is changed yet.
    void agree() {
        if (phase_ != step_phase::drawn) expect(step_phase::computing, "agree()");
        if (begin_micro() != nullptr || in_hand_ != nullptr || passed_ < drawn_->with_samples())
            throw error(errc::usage,
                        fmt::format("backward() was called for {} of {} micro-batches of step {}",
                                    passed_, drawn_->with_samples(), step_ + 1));
        reported_.weigh(1.0); // no batch is in hand
        feeder_->look_ahead(step_);
        clock_.count_overlap(clock_.waiting([&] { parts_->finish_backward(); }));

        const double global_batch = static_cast<double>(drawn_->global_batch);
        now_ = {.rank = ctx_.rank(), .step = step_ + 1, .lr = learning_rate(rate_, step_)};
        const double mine = parts_->store().own_squared_norm();
        clock_.waiting([&] {
            divisor_ = scale();
            if (weighted_)
                divisor_ *= weight_per_sample(ctx_, losses_.weight, global_batch, step_ + 1);
            now_.grad_norm = std::sqrt(parts_->squared_norm(mine)) / divisor_;
        });
        exchange_row();
        phase_ = step_phase::agreed;
    }

    void apply() {
        expect(step_phase::agreed, "apply()");
        const auto begin = seconds_now();
        const double scale = clip_to(now_.grad_norm, config_.clip).scale * divisor_;
        if (!overflowed()) optimizer_->step(now_.lr, scale, present_, config_.clip_value);
        if (scale_) scale_->update(!overflowed());
        if (scale_ && scale_->overflows() >= loss_scale::most_overflows)
            always_overflows(*scale_, step_ + 1);
        clock_.time().optimizer = seconds_now() - begin;
        phase_ = step_phase::applied;
        clock_.waiting([&] { parts_->publish(); });
    }

    void commit() {
        expect(step_phase::applied, "commit()");
        step_ += 1;
        feeder_->commit(*drawn_);
        reported_.clear();
        stopped_ = row_.stops();
        if (row_.stop_signal() > 0) result_.stop_signal = row_.stop_signal();
        now_.metrics = &row_.values();
        result_.loss = now_.loss;
        clock_.end_step(now_, drawn_->global_batch, config_.tokens_per_sample);
        drawn_.reset();
        phase_ = step_phase::idle;
        ask_stop(parts_->tell(now_));
        if (total_ == 0 && !stopped_) { // is this the last one?
            upcoming_ = draw_batch();
            ended_ = !upcoming_.has_value();
        }
        finish_step();
    }

    void complete() {
        if (phase_ == step_phase::drawn || phase_ == step_phase::computing) agree();
        if (phase_ == step_phase::agreed) apply();
        if (phase_ == step_phase::applied) commit();
    }

    void redo() {
        if (phase_ == step_phase::idle) return;
        if (phase_ == step_phase::applied)
            throw error(errc::usage,
                        fmt::format("step {} is applied: it cannot be taken back", step_ + 1));
        if (phase_ == step_phase::computing) {
            while (micro_ < static_cast<std::size_t>(config_.accumulation)) (void)begin_micro();
            parts_->finish_backward(); // the others wait for our part of the exchange
        }
        take_back();
    }

    /// The context is in another generation of its world.
    void rebind() {
        if (!input_)
            throw error(errc::usage, "a session that has not begun cannot go on in another world")
                .with_hint("open it with the new context");
        feeder_->quiet();
        const bool applied = phase_ == step_phase::applied;
        agree_on_step(ctx_, step_, applied ? ", not committed" : end_due_ ? ", its end to do" : "");
        parts_->rebind();
        optimizer_->rebind();
        auto* const average = optimizer_->average(); // an evaluation broke with it in place
        if (average != nullptr && average->is_shown()) average->swap();
        parts_->publish(); // some ranks may not have seen the last values
        if (applied)
            feeder_->commit(*drawn_); // what was applied is not drawn again; commit() is next
        else if (phase_ != step_phase::idle || drawn_)
            take_back();
        upcoming_.reset();
        row_.rebind();
        evaluator_->rebind();
        feeder_->rebind();
        if (saver_) open_saver();
        auto start = start_info_of({});
        if (end_due_) start.first_step -= 1; // its row is written again
        report_->rebind(start);
        ended_ = false; // the end of a stream is found again
        if (end_due_) finish_step();
    }
    void use_evaluation(std::uint64_t samples, numbered_loss loss) {
        evaluator_->use(samples, std::move(loss));
    }
    void expect_weights() noexcept { weighted_ = true; }
    void ask_stop(action wanted) {
        if (wanted != action::stop) return;
        stop_wanted_ = true;
        if (parts_ && stop_reason_.empty()) stop_reason_ = parts_->stop_reason();
    }
    report::metric_set& reported() noexcept { return reported_; }
    [[nodiscard]] step_phase phase() const noexcept { return phase_; }
    [[nodiscard]] std::uint64_t finished() const noexcept { return step_; }
    [[nodiscard]] double micro_loss() const noexcept { return losses_.mean(); }

private:
    /// The step that was drawn has not been.
    void take_back() {
        at::NoGradGuard no_grad;
        for (auto& [buffer, before] : buffers_) buffer.copy_(before);
        reported_ = reported_before_;
        drawn_.reset();
        in_hand_ = nullptr;
        feeder_->rewind();
        clock_.forget_compute();
        phase_ = step_phase::idle;
    }

    [[nodiscard]] start_info start_info_of(const std::string& resumed_from) const {
        return {.rank = ctx_.rank(),
                .world_size = ctx_.world_size(),
                .first_step = step_,
                .total_steps = total_,
                .parameters = parts_->store().trainable(),
                .run_path = report_->path(),
                .resumed_from = resumed_from,
                .strategy = parts_->strategy_name(),
                .epochs = epochs_text(config_, *input_)};
    }

    void expect(step_phase wanted, const char* call) const { require_phase(phase_, wanted, call); }

    [[nodiscard]] std::optional<drawn_batch> draw_batch() {
        const auto begin = seconds_now();
        auto batch = feeder_->next(step_);
        clock_.time().data += seconds_now() - begin;
        return batch;
    }

    [[nodiscard]] const void* batch_of(micro_batch& micro) {
        const auto begin = seconds_now();
        const void* const batch = feeder_->batch_of(micro);
        clock_.time().data += seconds_now() - begin;
        clock_.begin_forward();
        return batch;
    }

    /// Loss and backward pass of one micro-batch.
    template <class Loss>
    void pass(const micro_batch& micro, Loss get) {
        const user_code here{ctx_.rank(), step_ + 1};
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
        losses_.add(loss);
        passed_ += 1;
    }

    // ---- what the ranks agree on -------------------------------------------------------------

    /// The row of the step, equal on all ranks, and what they decide with it: whether the numbers
    /// are finite, whether to stop, which parameters had a gradient. Nothing is changed before.
    void exchange_row() {
        report::metric_set row;
        row.mean("loss", losses_.mean(), losses_.weight);
        row.last("lr", now_.lr).last("grad_norm", now_.grad_norm);
        if (scale_) row.last("loss_scale", scale());
        const auto& touched = parts_->store().touched();
        const bool all_touched = std::ranges::find(touched, 0.0) == touched.end();
        const double stop = ctx_.stop_requested() ? std::max(1.0, double(ctx_.stop_signal()))
                            : stop_wanted_        ? 1.0
                                                  : 0.0;
        row_.exchange(row, reported_, stop, all_touched, now_, clock_);
        if (!scale_ && !(std::isfinite(now_.loss) && std::isfinite(now_.grad_norm)))
            not_finite(ctx_, losses_.mean(), now_);
        if (row_.most_norm() != row_.least_norm() && !overflowed())
            come_apart(step_ + 1, row_.least_norm(), row_.most_norm());
        present_.clear();
        if (row_.some_untouched()) { // rarely: who had which
            present_ = touched;
            all_reduce(ctx_, present_, dist::reduce_op::max);
        }
    }

    [[nodiscard]] double scale() const noexcept { return scale_ ? scale_->value() : 1.0; }
    /// The step is left out: on every rank, because the norm is the same on all.
    [[nodiscard]] bool overflowed() const noexcept {
        return scale_ && !(std::isfinite(now_.loss) && std::isfinite(now_.grad_norm));
    }
    // ---- between steps -----------------------------------------------------------------------

    [[nodiscard]] bool is_last() const noexcept { return total_ > 0 ? step_ == total_ : ended_; }

    /// Evaluation, files and checkpoint, which a world that breaks meanwhile leaves to be done.
    void finish_step() {
        end_due_ = true;
        end_of_step(now_);
        end_due_ = false;
    }

    void end_of_step(const step_info& now) {
        const auto due = [&](std::int64_t every) {
            return is_last() || (every > 0 && step_ % static_cast<std::uint64_t>(every) == 0);
        };
        if (stopped_ && row_.stop_signal() == 0) result_.stop_reason = row_.reason(stop_reason_);
        std::vector<metric_value> evaluated;
        if (due(config_.eval_every) && !stopped_) evaluated = evaluate();
        report_->step(now, evaluated);
        if (due(config_.checkpoint.every) || (stopped_ && config_.checkpoint.on_stop))
            save(evaluated);
    }

    std::vector<metric_value> evaluate() {
        const auto begin = seconds_now();
        feeder_->quiet();
        auto* const average = optimizer_->average();
        const bool averaged =
            average != nullptr && average->options().evaluate && evaluator_->samples() > 0;
        if (averaged) swap_average(ctx_, *average, *parts_);
        const auto merged = [&] {
            try {
                return evaluator_->run(step_);
            } catch (...) { // whoever catches it has the weights that are trained
                if (averaged) average->swap();
                throw;
            }
        }();
        evaluated_at_ = step_;
        if (averaged) swap_average(ctx_, *average, *parts_);
        if (merged.empty()) return merged;
        result_.val_loss = merged[0].value;
        result_.val_step = step_;
        ask_stop(parts_->tell(eval_info{.rank = ctx_.rank(),
                                        .step = step_,
                                        .metrics = &merged,
                                        .seconds = seconds_now() - begin}));
        return merged;
    }

    /// Makes the checkpointer and, if asked for, goes on from the newest one; returns its path.
    std::string open_checkpoints() {
        if (!config_.checkpoint.enabled) return {};
        open_saver();
        if (auto text = cadence_notice(config_, evaluator_->samples()); !text.empty())
            notices_.push_back(std::move(text));
        if (config_.resume != resume_mode::latest && ctx_.attempt() == 0) return {};
        auto found = saver_->load_latest();
        if (!found) return {};
        restore(*found);
        return found->path();
    }

    void open_saver() {
        saver_.emplace(disk_, report_->checkpoints(), checkpoint_options_of(config_),
                       make_checkpoint_world(ctx_));
    }

    void restore(const loaded_checkpoint& found) {
        state_->restore(found);
        parts_->publish();
        step_ = found.step();
        result_.checkpoint = found.path();
        const auto extra =
            parse_json(found.extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
        result_.loss = saved_number(extra, "loss");
        if (input_->is_stream())
            feeder_->restore_stream(extra.at("stream"), found.path());
        else
            feeder_->rewind();
        stop_wanted_ = extra.value("stop_wanted", false);
        restore_callbacks(*parts_, extra, found.path());
        if (scale_) restore_scale(*scale_, extra);
        if (total_ > 0 && step_ > total_)
            throw error(errc::usage, fmt::format("the run has {} steps already, {} were asked for",
                                                 step_, total_))
                .with_where(found.path())
                .with_hint("ask for more steps, or another run name");
        if (total_ == 0 || step_ < total_)
            if (auto text = rate_notice(extra, step_, learning_rate(rate_, step_)); !text.empty())
                notices_.push_back(std::move(text));
    }

    void save(const std::vector<metric_value>& evaluated) {
        if (!saver_) return;
        parts_->sync_buffers();
        json extra = json::object();
        if (input_->is_stream()) extra["stream"] = feeder_->saved_stream();
        if (scale_)
            extra["loss_scale"] = {{"value", scale()}, {"good_steps", scale_->good_steps()}};
        // Not those that a stop or the run's end has granted: who resumes it wants it to go on.
        double stop = stop_wanted_ && !stopped_ && !is_last() ? 1.0 : 0.0;
        all_reduce(ctx_, std::span(&stop, 1), dist::reduce_op::max);
        extra["stop_wanted"] = stop > 0;
        if (ctx_.is_first()) // whose extra is written
            for (const auto& each : parts_->states())
                extra["callbacks"][each.name] = to_hex(as_bytes(std::string_view(each.state)));
        auto what = state_->save(step_, config_.seed,
                                 {{"loss", result_.loss}, {"next_lr", learning_rate(rate_, step_)}},
                                 dump_json(extra));
        what.metrics["loss"] = result_.loss;
        for (const auto& m : evaluated) what.metrics[m.name] = m.value;
        const auto saved = saver_->save(what);
        result_.checkpoint = saved.path;
        const checkpoint_info info{ctx_.rank(), step_, saved.path, saved.bytes, saved.seconds};
        report_->saved(info);
        parts_->tell(info);
    }

    void finish_result(double seconds) {
        report::metric_set m;
        m.max("rss", peak_rss_bytes());
        result_.peak_rss_bytes = merge(ctx_, m)[0].value;
        result_.steps = step_;
        result_.total = total_;
        result_.seconds = seconds;
        result_.tokens_per_s = clock_.tokens_per_s();
        result_.run_name = report_->name();
        result_.run_path = report_->path();
        result_.stopped = stopped_ && !is_last();
    }

    const context& ctx_;
    const run_config& config_;
    report::settings described_;
    report::metric_set& reported_;
    schedule rate_;
    std::unique_ptr<session_parts> parts_;
    std::unique_ptr<input_source> input_;
    std::optional<flat_optimizer> optimizer_;
    std::optional<evaluator> evaluator_;
    std::optional<feeder> feeder_;
    std::optional<training_state> state_;
    std::optional<reporter> report_;
    posix_disk disk_{link_policy::refuse};
    std::optional<checkpointer> saver_;

    std::uint64_t total_ = 0; // steps of the run; 0: not known
    std::uint64_t step_ = 0;  // finished
    std::uint64_t evaluated_at_ = std::numeric_limits<std::uint64_t>::max();
    bool weighted_ = false, stopped_ = false, stop_wanted_ = false, ended_ = false;
    bool end_due_ = false;             // of the step that was committed last
    std::vector<std::string> notices_; // to be told when the run begins

    // The step that is not committed
    step_phase phase_ = step_phase::idle;
    std::optional<drawn_batch> drawn_, upcoming_;
    std::size_t micro_ = 0, passed_ = 0; // micro-batches that were begun, and that had a loss
    micro_batch* in_hand_ = nullptr;
    loss_sum losses_;
    double divisor_ = 1.0;
    std::optional<loss_scale> scale_; // in float16
    step_info now_;
    row_exchange row_;
    std::vector<double> present_; // by segment, when not all had a gradient; else empty
    std::string stop_reason_;     // a callback's of this rank
    report::metric_set reported_before_;
    std::vector<std::pair<at::Tensor, at::Tensor>> buffers_; // and their values when it was drawn

    double begun_ = 0.0;
    step_clock clock_;
    fit_result result_;
};

} // namespace skein::train::detail

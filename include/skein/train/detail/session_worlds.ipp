// SPDX-License-Identifier: Apache-2.0
#pragma once
// A session's way from one world into the next: bodies of
// <skein/train/detail/session_core.ipp>.

#include <skein/core/fnv.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/session_core.ipp>

namespace skein::train::detail {

SKEIN_INLINE carried_state between_steps::carried(step_end end) {
    carried_state out;
    auto more = extra(run_.stop_wanted);
    if (!run_.training->empty()) more["train_metrics"] = run_.training->saved();
    if (run_.input->is_stream()) more["stream"] = run_.feeder->own_stream();
    out.extra = state_->save(run_.step, config_.seed, {}, dump_json(more)).extra;
    out.run_name = report_->name();
    out.run_path = report_->path();
    out.epoch = run_.epoch;
    out.stopped = run_.stopped;
    out.hurries = run_.hurries;
    out.stop_signal = run_.result.stop_signal;
    out.stop_reason = run_.result.stop_reason;
    out.loss = run_.result.loss;
    out.val_loss = run_.result.val_loss;
    out.scheduled = run_.scheduled;
    out.val_step = run_.result.val_step;
    out.first_step = run_.result.first_step;
    out.checkpoint = run_.result.checkpoint;
    out.save_due = saves_.is_due();
    out.metrics = run_.result.metrics;
    out.arrays = run_.result.arrays;
    out.evaluated_at = evaluated_at_;
    out.told_at = told_at_;
    out.newest = newest_;
    out.left_out = run_.left_out;
    out.plan = run_.plan;
    out.late = run_.training->late().values;
    out.late_arrays = run_.training->late().arrays;
    out.row = last_;
    if (end != step_end::nothing) {
        out.row = {};
        out.row.decided = events_;
    }
    out.row.values = run_.row.values;
    out.row.arrays = run_.row.arrays;
    out.row.word = run_.word;
    return out;
}

SKEIN_INLINE void between_steps::adopt(const carried_state& from, std::uint64_t step) {
    const std::string where = "the state of another rank";
    run_.step = step;
    state_->adopt(from.extra, where);
    const auto saved =
        parse_json(std::string_view(from.extra), {.max_bytes = 256u << 20, .max_depth = 64})
            .value();
    if (run_.input->is_stream())
        run_.feeder->restore_stream(saved.at("stream"), where);
    else
        run_.feeder->rewind();
    run_.stop_wanted = saved.value("stop_wanted", false);
    restore_callbacks(*run_.parts, saved, where);
    run_.sums.restore(saved, where);
    (void)restore_plan(run_, saved, where);
    if (from.plan != run_.plan) run_.follow(from.plan, run_.step);
    run_.word = from.row.word;
    if (run_.scale) restore_scale(*run_.scale, saved);
    notices_.clear(); // of a resume
    run_.training->restore(saved, where);
    run_.epoch = from.epoch;
    run_.stopped = from.stopped;
    run_.hurries = from.hurries;
    run_.scheduled = from.scheduled;
    run_.left_out = from.left_out;
    run_.training->late() = {from.late, from.late_arrays};
    run_.result.stop_signal = from.stop_signal;
    run_.result.stop_reason = from.stop_reason;
    run_.result.loss = from.loss;
    run_.result.val_loss = from.val_loss;
    run_.result.val_step = from.val_step;
    run_.result.first_step = from.first_step;
    run_.result.checkpoint = from.checkpoint;
    saves_.set_due(from.save_due);
    run_.result.metrics = from.metrics;
    run_.result.arrays = from.arrays;
    evaluated_at_ = from.evaluated_at;
    told_at_ = from.told_at;
    newest_ = from.newest;
    last_ = from.row;
    run_.row = {from.row.values, from.row.arrays};
    events_ = from.row.decided;
    if (!report_) report_.emplace(ctx_, config_, from.run_name, from.run_path);
    if (!std::exchange(has_told_start_, true)) run_.parts->tell(start_info_of({}));
}

[[nodiscard]] SKEIN_INLINE double session_core::stop_word() const {
    const auto* const job = place_ != nullptr ? &place_->job() : nullptr;
    const bool by_job = job != nullptr && job->stop_wanted();
    if (!by_job && !ctx_.stop_requested()) return run_.stop_wanted ? 0.5 : 0.0;
    return std::max({1.0, double(ctx_.stop_signal()), by_job ? double(job->stop_signal()) : 0});
}

[[nodiscard]] SKEIN_INLINE double session_core::whole_weight() {
    if (shards_) return shards_->weight();
    double all = losses_.weight;
    all_reduce(ctx_, std::span(&all, 1), dist::reduce_op::sum);
    return all;
}

SKEIN_INLINE void session_core::prepare_for_worlds() { between_.prepare(); }

/// Before a step is applied: a rank that joins gets the place of another one's stream.
SKEIN_INLINE void session_core::require_one_stream() {
    if (!run_.input->is_stream()) return;
    fnv1a hash;
    hash.text(drawn_->stream);
    const auto number = static_cast<double>(hash.value() >> 12);
    double both[] = {number, -number};
    all_reduce(ctx_, both, dist::reduce_op::max);
    if (both[0] == -both[1]) return;
    throw error(errc::not_supported,
                "not supported: streams with a state for each rank, in a run whose ranks change")
        .with_hint("give streams one state for all: the place in the whole stream, as feed() has");
}

/// A step whose only result is that the next one is not the first: before others wait for it.
SKEIN_INLINE void session_core::warm_up(const batch_loss& loss) {
    run_.feeder->deal_as(0, place_->job().most()); // no more than a rank has to bear
    if (!draw_here()) return;
    try {
        compute(loss, /*all=*/false);
        run_.parts->finish_backward();
    } catch (const redo_step&) { // nothing has to come of it
    }
    take_back();
}

/// Forward and backward passes of this rank's micro-batches, or of the first one.
SKEIN_INLINE void session_core::compute(const batch_loss& loss, bool all) {
    while (auto* const micro = begin_micro()) {
        pass(*micro, [&] {
            reported_.weigh(static_cast<double>(micro->samples));
            auto value = loss(batch_of(*micro), training());
            micro->value.reset(); // the graph keeps what it needs
            return value;
        });
        if (!all) return;
    }
}

/// True when `work` is done; false when the world broke meanwhile, and this is another one, in
/// which the step that was under way is taken back or done.
template <class Work>
bool session_core::in_world(Work work) {
    try {
        work();
        return true;
    } catch (const error& why) {
        if (place_ == nullptr || place_->is_over() || !is_of_world(why)) throw;
        abort(why);
        reason_ = why.text();
    }
    change_world(spmd::world_end::broken);
    return false;
}

/// Into the next world that works.
SKEIN_INLINE void session_core::change_world(spmd::world_end last) {
    const auto begin = seconds_now();
    const int before = place_->has_world() ? ctx_.world_size() : 0;
    for (;;) {
        try {
            if (!place_->move(*moving_, last, std::exchange(reason_, {}))) throw rank_left{};
            enter_world({.change = place_->job().change(), .before = before}, begin);
            return;
        } catch (const error& why) {
            if (place_->is_over() || !is_of_world(why)) throw;
            abort(why);
            reason_ = why.text();
            last = spmd::world_end::broken;
        }
    }
}

SKEIN_INLINE void session_core::enter_world(world_news news, double begin) {
    run_.feeder->quiet();
    const bool applied = phase_ == step_phase::applied;
    const world_word mine{.has_state = has_state_,
                          .is_torn = is_torn_,
                          .applied = run_.step + (applied ? 1 : 0),
                          .end = applied ? step_end::decide : end_,
                          .told = applied ? 0 : between_.told(told_step_),
                          .model = between_.state().config_hash(),
                          .settings = settings_};
    const auto plan = agree_on_state(ctx_, mine);
    run_.parts->rebind();
    run_.optimizer->rebind();
    auto* const average = run_.optimizer->average(); // an evaluation broke with it in place
    if (average != nullptr && average->is_shown()) average->swap();
    run_.upcoming.reset();
    if (applied)
        commit_here();
    else if (phase_ != step_phase::idle || drawn_)
        take_back();
    row_.rebind();
    if (shards_) shards_->rebind();
    if (run_.look) run_.look->forget();
    take_state(plan, news);
    place_->release();
    run_.parts->publish();
    run_.feeder->rebind();
    run_.ended = false;
    if (plan.begins) {
        begin_here();
        return;
    }
    news.stall = seconds_now() - begin;
    const bool took = !plan.gives[static_cast<std::size_t>(ctx_.rank())];
    between_.enter(end_, took, news);
    between_.enter_plan(run_.step, end_ != step_end::nothing);
    end_step();
}

/// From those that have it to those that are behind or new.
SKEIN_INLINE void session_core::take_state(const world_plan& plan, world_news& news) {
    const bool gives = plan.gives[static_cast<std::size_t>(ctx_.rank())];
    const bool all_have = std::ranges::find(plan.gives, false) == plan.gives.end();
    if (!all_have) {
        if (!gives) {
            is_torn_ = true;
            has_state_ = false;
        }
        news.bytes = between_.state().copy(ctx_, plan.gives);
        if (!plan.begins) {
            carried_state carried;
            if (gives) carried = carry();
            carried = spread(ctx_, carried, plan);
            if (!gives) adopt(carried);
        }
        double most = static_cast<double>(news.bytes);
        all_reduce(ctx_, std::span(&most, 1), dist::reduce_op::max);
        news.bytes = static_cast<std::uint64_t>(most);
    }
    is_torn_ = false;
    has_state_ = !plan.begins;
}

SKEIN_INLINE carried_state session_core::carry() {
    auto out = between_.carried(end_);
    out.told_step = told_step_;
    out.step = run_.step;
    out.end = end_;
    out.ends_epoch = ends_epoch_;
    if (end_ != step_end::nothing) { // else the row that was written last is there
        out.row.step = now_.step;
        out.row.loss = now_.loss;
        out.row.lr = now_.lr;
        out.row.grad_norm = now_.grad_norm;
        out.row.seconds = now_.seconds;
        out.row.tokens_per_s = now_.tokens_per_s;
        out.row.batch = now_.batch;
        out.row.micro_batches = now_.micro_batches;
        if (now_.squares != nullptr) out.row.squares = *now_.squares;
        out.row.squares_are_differenced = now_.squares_are_differenced;
    }
    return out;
}

SKEIN_INLINE void session_core::adopt(const carried_state& from) {
    between_.adopt(from, from.step);
    end_ = from.end;
    ends_epoch_ = from.ends_epoch;
    told_step_ = from.told_step;
    adopt_row(from.row);
    run_.total = run_.feeder->total();
}

/// Of the step that was committed last.
SKEIN_INLINE void session_core::adopt_row(const last_row& row) {
    now_ = {.rank = ctx_.rank(),
            .step = row.step,
            .loss = row.loss,
            .lr = row.lr,
            .grad_norm = row.grad_norm,
            .seconds = row.seconds,
            .tokens_per_s = row.tokens_per_s,
            .batch = row.batch,
            .micro_batches = row.micro_batches,
            .metrics = &run_.row.values,
            .arrays = &run_.row.arrays,
            .word = run_.word,
            .squares_are_differenced = row.squares_are_differenced};
    if (run_.look && !row.squares.empty()) now_.squares = run_.look->keep(row.squares);
}

/// The context is in another generation of its world.
SKEIN_INLINE void session_core::rebind() {
    if (!run_.input)
        throw error(errc::usage, "a session that has not begun cannot go on in another world")
            .with_hint("open it with the new context");
    if (place_ != nullptr)
        throw error(errc::usage, "rebind() in an elastic job: its session does it by itself");
    run_.feeder->quiet();
    const bool applied = phase_ == step_phase::applied;
    agree_on_step(ctx_, run_.step,
                  applied                     ? ", not committed"
                  : end_ != step_end::nothing ? ", its end to do"
                                              : "");
    run_.training->forget();
    run_.parts->rebind();
    run_.optimizer->rebind();
    auto* const average = run_.optimizer->average(); // an evaluation broke with it in place
    if (average != nullptr && average->is_shown()) average->swap();
    run_.parts->publish(); // some ranks may not have seen the last values
    if (applied)
        run_.feeder->commit(*drawn_,
                            run_.step + 1); // what was applied is not drawn again; commit() is next
    else if (phase_ != step_phase::idle || drawn_)
        take_back();
    run_.upcoming.reset();
    row_.rebind();
    if (shards_) shards_->rebind();
    if (run_.look) run_.look->forget();
    run_.feeder->rebind();
    between_.rebind(end_ != step_end::nothing);
    run_.ended = false; // the end of a stream is found again
    between_.enter_plan(run_.step + (applied ? 1 : 0), applied || end_ != step_end::nothing);
    end_step();
}

} // namespace skein::train::detail

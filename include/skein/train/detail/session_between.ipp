// SPDX-License-Identifier: Apache-2.0
#pragma once
// What lies between the steps of a run: evaluation, files, checkpoints, and how it begins and ends.
// Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/feeder.ipp>
#include <skein/train/detail/session_evaluation.ipp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/session_plan.ipp>
#include <skein/train/detail/session_saves.hpp>
#include <skein/train/detail/session_state.ipp>
#include <skein/train/detail/session_world.ipp>
#include <skein/train/loss_scale.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/run_result.hpp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>
#include <skein/wire/schema.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

class between_steps {
public:
    explicit between_steps(run_state& run) : run_(run), ctx_(run.ctx), config_(run.config) {}

    /// Once the strategy is made.
    void open() { evaluator_.emplace(*run_.parts, ctx_, config_, run_.declared); }
    void evaluate_on(std::string name, sample_range data, const evaluation_options& how,
                     numbered_loss loss, bool reports) {
        evaluator_->use(std::move(name), std::move(data), std::move(loss), how, reports);
        evaluated_at_.push_back(std::numeric_limits<std::uint64_t>::max());
        told_at_.push_back(std::numeric_limits<std::uint64_t>::max());
    }
    /// Adds what the sets hold to what ranks must have alike.
    void compare_samples(std::vector<spmd::setting>& to) const {
        for (std::size_t i = 0; i < evaluator_->size(); ++i)
            to.push_back(some_samples(evaluator_->name(i), evaluator_->data(i)));
    }
    /// "10000", or "val 10000 every 100, test 500 every 0": what ranks must have alike.
    [[nodiscard]] std::string evaluations() const {
        std::string all;
        for (std::size_t i = 0; i < evaluator_->size(); ++i)
            all += fmt::format("{}{} {} every {}", i == 0 ? "" : ", ", evaluator_->name(i),
                               evaluator_->samples(i), evaluator_->every(i));
        return all;
    }

    /// Opens the run's folder and resumes, if that is asked for; then all is told.
    ///   result  what the step of the checkpoint still lacks, if its evaluation had failed
    std::optional<carried_state> begin(const report::settings& described) {
        prepare();
        report_.emplace(ctx_, config_, described);
        std::optional<carried_state> due;
        const auto resumed_from = open_checkpoints(due);
        run_.result.first_step = run_.step;
        const auto start = start_info_of(resumed_from);
        report_->begin(start, due.has_value());
        for (const auto& text : notices_) report_->notice(text);
        if (ctx_.is_first()) tell_state(*report_, ctx_, config_, *run_.parts, *run_.optimizer);
        if (!saves_.notice().empty()) report_->note(saves_.notice());
        has_told_start_ = true;
        run_.parts->tell(start);
        enter_plan(run_.step, false);
        return due;
    }
    /// What lies behind the step of a checkpoint whose evaluation had failed: it is made now.
    void adopt_end(const carried_state& from);

    /// What begin() and join() need of this rank alone; once.
    void prepare() {
        if (state_) return;
        evaluator_->check_stages();
        check_best();
        state_.emplace(run_.parts->store(), *run_.optimizer, run_.feeder->order());
    }
    [[nodiscard]] training_state& state() { return *state_; }

    /// What a rank that is behind or new needs besides the tensors.
    ///   end  what is to be done behind the last step
    [[nodiscard]] carried_state carried(step_end end);
    /// Takes that over; the tensors are there.
    void adopt(const carried_state& from, std::uint64_t step);
    /// So much of the last step's end was told to the callbacks.
    [[nodiscard]] std::uint64_t told(std::uint64_t told_step) const {
        return (told_step == run_.step ? 1 : 0) +
               static_cast<std::uint64_t>(std::ranges::count(told_at_, run_.step));
    }
    /// The files are those of this world's first rank. Collective.
    ///   end   what is to be done behind the last step
    ///   took  this rank has its state from another one
    void enter(step_end end, bool took, const world_news& news) {
        evaluator_->rebind();
        if (config_.checkpoint.enabled) open_saver();
        // A run that was resumed has written no row yet: that of its step is in the file.
        const bool may_lack = report_->takes_over() || (took && ctx_.is_first());
        const bool rewrites =
            may_lack && end == step_end::nothing && run_.step > 0 && last_.step == run_.step;
        const auto start = start_info_of({});
        report_->rebind(start, end != step_end::nothing || rewrites, news.change.why);
        // Nothing that a broken world can cut off comes between that and this.
        if (rewrites) write_last();
        if (news.before > 0) last_.worlds.push_back(report_->changed(run_.step, news));
    }

    /// The plan of the steps in this world; what is another one than before is told.
    ///   behind   as for run_state::follow()
    ///   end_due  the row of that step is not written yet
    void enter_plan(std::uint64_t behind, bool end_due) {
        for (auto& row : detail::enter_plan(run_, report_->hosts(), behind)) {
            report_->set_total(run_.total);
            if (!end_due) report_->decided(row);
            // Whoever writes the step's row has them, too.
            (end_due ? events_ : last_.decided).push_back(std::move(row));
        }
    }

    [[nodiscard]] run_saves& saves() noexcept { return saves_; }
    /// A checkpoint that is durable on all ranks, if there is one.
    void tell_saved(const std::optional<saved_checkpoint>& saved) {
        if (!saved) return;
        run_.result.checkpoint = saved->path;
        const checkpoint_info info{ctx_.rank(), saved->step, saved->path, saved->bytes,
                                   saved->seconds};
        report_->saved(info);
        run_.parts->tell(info);
    }

    /// A step is drawn: what was decided behind the one before is written.
    void begin_step() noexcept { events_.clear(); }
    /// A callback has left a step out.
    void left_out(std::uint64_t step, const std::string& rule, const std::string& why) {
        events_.push_back({step, rule, "step", "\"apply\"", "\"leave_out\"", why});
    }
    /// Tells the callbacks the step that is committed, and follows what they decide.
    void tell_step(step_info& now) {
        now.next_rate = next_rate();
        now.epoch = run_.feeder->epochs_done();
        tell(now);
    }

    /// The metrics of training that are due with this row. Collective when some are.
    void measure(bool ends_epoch) {
        auto due = run_.training->end_of_step(run_.step, ends_epoch, run_.comes_to_end());
        if (due.values.empty() && due.arrays.empty()) return;
        result_of(run_.result, due);
        run_.row.append(std::move(due));
        refuse_twice(run_.row.values);
    }

    /// Evaluation, row, decisions and checkpoint of the step that is committed, as they are due.
    ///   carry  gives what a resumed run needs to make the end of this step, if the evaluation fails
    template <class Carry>
    void end_of_step(const step_info& now, Carry carry) {
        try {
            end_step(now);
        } catch (const evaluation_failed& failure) {
            const bool is_saved = keep_step(carry());
            fail(failure, is_saved);
        }
    }

    /// The same where nothing may fail but the world.
    void end_step(const step_info& now) {
        const auto on_this_step = [&](std::int64_t every) {
            return every > 0 && run_.step % static_cast<std::uint64_t>(every) == 0;
        };
        const auto is_due = [&] {
            return on_this_step(config_.checkpoint.every) || run_.is_last() ||
                   (run_.stopped && config_.checkpoint.on_stop);
        };
        const auto best = set_of_best();
        stage_numbers evaluated;
        std::vector<bool> done(evaluator_->size(), run_.hurries);
        const auto evaluate_due = [&] {
            for (std::size_t set = 0; set < done.size(); ++set) {
                const bool is_asked = on_this_step(evaluator_->every(set)) || run_.comes_to_end();
                if (done[set] || (!is_asked && !(is_due() && best == set))) continue;
                done[set] = true;
                evaluate(set, evaluated, is_asked);
            }
        };
        evaluate_due();
        // A larger batch that a rule has decided on may leave no further step: this was the last.
        if (run_.comes_to_end()) {
            evaluate_due();
            measure(!run_.input->is_stream() && run_.feeder->epochs_done() > run_.epoch);
        }
        for (const auto& m : run_.row.values)
            if (m.name.starts_with("train_")) newest_[m.name] = m.value;
        for (const auto& m : evaluated.values) newest_[m.name] = m.value;
        last_ = {.step = now.step,
                 .loss = now.loss,
                 .lr = now.lr,
                 .grad_norm = now.grad_norm,
                 .seconds = now.seconds,
                 .tokens_per_s = now.tokens_per_s,
                 .batch = now.batch,
                 .micro_batches = now.micro_batches,
                 .evaluated = evaluated.values,
                 .evaluated_arrays = evaluated.arrays,
                 .decided = events_};
        if (run_.feeder->units()) report_->set_total(run_.total); // by what steps are worth now
        report_->step(now, evaluated.values, evaluated.arrays);
        for (const auto& event : events_)
            report_->decided(event); // before the rules' state is saved
        if (is_due() || saves_.is_due()) save(evaluated.values);
    }

    /// The last evaluation, files, callbacks.
    ///   begun         when the session began, by seconds_now()
    ///   tokens_per_s  of all steps
    fit_result finish(double begun, double tokens_per_s) {
        run_.feeder->quiet();
        is_over_ = true;
        tell_saved(saves_.settle());
        stage_numbers last;
        try {
            for (std::size_t set = 0; set < evaluator_->size() && !run_.hurries; ++set)
                if (evaluated_at_[set] != run_.step) evaluate(set, last);
        } catch (const evaluation_failed& failure) { // the step has its checkpoint
            fail(failure, saves_.is_open());
        }
        if (auto* const average = run_.optimizer->average(); average && average->options().keep)
            swap_average(ctx_, *average, *run_.parts);
        finish_result(seconds_now() - begun, tokens_per_s); // the last exchange
        if (!run_.result.stop_reason.empty())
            report_->note(
                fmt::format("stopped after step {}: {}", run_.step, run_.result.stop_reason));
        report_->finish(run_.result);
        run_.parts->finish();
        run_.parts->tell(run_.result);
        leave_screen(ctx_, config_, run_.result);
        return run_.result;
    }

    /// The context is in another generation of its world.
    ///   end_due  the end of the last step is to be made again
    void rebind(bool end_due) {
        evaluator_->rebind();
        if (saves_.is_open()) open_saver();
        report_->rebind(start_info_of({}), end_due, {});
        if (!run_.training->empty())
            report_->notice(fmt::format("the metrics of training count from step {} on: those of "
                                        "the window and of the epoch before are left out",
                                        run_.step + 1));
    }

private:
    // ---- failed evaluations: bodies in detail/session_ends.ipp ----------------------------------

    /// An evaluation failed, which says nothing against what was trained: the step gets its
    /// checkpoint, and whoever resumes makes the rest of it.
    ///   result  whether it has one
    [[nodiscard]] bool keep_step(carried_state end);
    /// Who knows why throws it; the others wait for its word.
    [[noreturn]] void fail(const evaluation_failed& failure, bool is_saved);
    /// What keep_step() has put into a checkpoint.
    [[nodiscard]] std::optional<carried_state> saved_end(const json& extra,
                                                         const std::string& where);

    /// A rank that has died may not have written it.
    void write_last() {
        step_info now{.rank = ctx_.rank(),
                      .step = last_.step,
                      .loss = last_.loss,
                      .lr = last_.lr,
                      .grad_norm = last_.grad_norm,
                      .seconds = last_.seconds,
                      .tokens_per_s = last_.tokens_per_s,
                      .batch = last_.batch,
                      .micro_batches = last_.micro_batches,
                      .metrics = &run_.row.values,
                      .arrays = &run_.row.arrays};
        report_->step(now, last_.evaluated, last_.evaluated_arrays);
        for (const auto& event : last_.decided) report_->decided(event);
        for (const auto& row : last_.worlds) report_->add_event(row);
    }

    [[nodiscard]] start_info start_info_of(const std::string& resumed_from) const {
        return {.rank = ctx_.rank(),
                .world_size = ctx_.world_size(),
                .first_step = run_.step,
                .total_steps = run_.total,
                .parameters = run_.parts->store().trainable(),
                .run_path = report_->path(),
                .resumed_from = resumed_from,
                .strategy = run_.parts->strategy_name(),
                .optimizer = train::describe(run_.optimizer->options()).name,
                .samples = run_.input->size(),
                .epochs = epochs_text(config_, *run_.input),
                .evaluations = evaluator_->names(),
                .numbers = evaluator_->known(),
                .open = evaluator_->open(),
                .training = run_.training->names()};
    }

    /// By the schedule alone. Behind the last step there is none.
    [[nodiscard]] double next_rate() const {
        if (!run_.parts->plans()) return 0.0;
        return run_.is_last() ? run_.scheduled : run_.scheduled_rate(run_.step);
    }

    template <class Event>
    void tell(const Event& event) {
        decisions to{.plan = run_.plan};
        run_.parts->tell(event, to);
        if (is_over_) return; // no step follows, nothing is saved
        for (const auto& each : to.made) {
            if (run_.stopped && each.from == each.to) continue; // it does stop
            check_plan(each.to, run_.limits(), each.rule, run_.step);
            add_events(events_, each, run_.step);
        }
        if (to.plan != run_.plan) {
            run_.ask_for(to.plan);
            run_.follow(to.plan, run_.step);
            report_->set_total(run_.total);
        }
        run_.ask_stop(to.wanted);
    }

    /// The evaluation set whose number says which checkpoint is the best, where a checkpoint wants
    /// it evaluated.
    [[nodiscard]] std::optional<std::size_t> set_of_best() const {
        const auto& best = config_.checkpoint.keep_best;
        if (!saves_.is_open() || best.k < 1 || best.value == best_value::newest)
            return std::nullopt;
        return evaluator_->set_of(best.metric);
    }

    /// A metric that no evaluation can have is refused before the first step; one that only the
    /// loss may report is told.
    void check_best() {
        const auto& best = config_.checkpoint.keep_best;
        if (!config_.checkpoint.enabled || best.k < 1 || best.metric == "loss") return;
        const auto set = evaluator_->set_of(best.metric);
        if (set && evaluator_->is_known(best.metric)) return;
        if (set && !evaluator_->has_shape(best.metric) && evaluator_->reports(*set)) {
            if (evaluator_->is_measured(*set))
                notices_.push_back(
                    fmt::format("checkpoint.keep_best.metric '{}' is a number that the loss has to "
                                "report; without it {}",
                                best.metric, known_names(evaluator_->known())));
            return;
        }
        if (evaluator_->samples() == 0 && best.metric == keep_best_config{}.metric)
            return; // nobody has asked for it
        name_list list;
        list.add("loss");
        evaluator_->add_known(list);
        if (const auto* const mine = run_.declared.find("train"))
            for (const auto& name : number_names(*mine)) {
                if (best.metric == "train_" + name || best.metric == "train_epoch_" + name) return;
                list.add("train_" + name);
            }
        throw error(errc::usage, fmt::format("checkpoint.keep_best.metric '{}' is no number of "
                                             "this run",
                                             best.metric))
            .with_hint(list.text("there are none"));
    }

    /// In a world that broke behind this the evaluation is made again, the decisions are not.
    void tell_evaluation(std::size_t set, const stage_numbers& merged, double seconds,
                         bool is_due) {
        if (std::exchange(told_at_[set], run_.step) == run_.step) return;
        tell(eval_info{.rank = ctx_.rank(),
                       .step = run_.step,
                       .set = evaluator_->name(set),
                       .is_due = is_due,
                       .metrics = &merged.values,
                       .arrays = &merged.arrays,
                       .seconds = seconds,
                       .next_rate = next_rate(),
                       .epoch = run_.feeder->epochs_done()});
    }

    /// Adds what the set comes to. Collective.
    void evaluate(std::size_t set, stage_numbers& to, bool is_due = true) {
        const auto begin = seconds_now();
        run_.feeder->quiet();
        auto* const average = run_.optimizer->average();
        const bool averaged =
            average != nullptr && average->options().evaluate && evaluator_->samples(set) > 0;
        if (averaged) swap_average(ctx_, *average, *run_.parts);
        auto merged = [&] {
            try {
                return evaluator_->run(set, run_.step);
            } catch (const evaluation_failed&) { // all ranks alike, and the weights are saved next
                if (averaged) swap_average(ctx_, *average, *run_.parts);
                throw;
            } catch (...) { // whoever catches it has the weights that are trained
                if (averaged) average->swap();
                throw;
            }
        }();
        evaluated_at_[set] = run_.step;
        if (averaged) swap_average(ctx_, *average, *run_.parts);
        if (merged.values.empty()) return;
        if (set == 0) {
            run_.result.val_loss = merged.values[0].value;
            run_.result.val_step = run_.step;
        }
        result_of(run_.result, merged);
        tell_evaluation(set, merged, seconds_now() - begin, is_due);
        to.append(std::move(merged));
    }

    /// Makes the checkpointer and, if asked for, goes on from the newest one; returns its path.
    std::string open_checkpoints(std::optional<carried_state>& due) {
        if (!config_.checkpoint.enabled) return {};
        open_saver();
        if (config_.resume != resume_mode::latest && ctx_.attempt() == 0) return {};
        auto found = saves_.load_latest();
        if (!found) return {};
        due = restore(*found);
        return found->path();
    }

    void open_saver() {
        tell_saved(saves_.end_with_world());
        saves_.open(report_->checkpoints(), checkpoint_options_of(config_),
                    [this] { return state_->save(run_.step, config_.seed); });
    }

    ///   result  what its step still lacks
    std::optional<carried_state> restore(const loaded_checkpoint& found) {
        state_->restore(found);
        run_.parts->publish();
        run_.step = found.step();
        run_.result.checkpoint = found.path();
        const auto extra =
            parse_json(found.extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
        run_.result.loss = saved_number(extra, "loss");
        if (run_.input->is_stream())
            run_.feeder->restore_stream(extra.at("stream"), found.path());
        else
            run_.feeder->rewind();
        require_same_shards(extra.value("logical_shards", 0), config_, found.path());
        run_.stop_wanted = extra.value("stop_wanted", false);
        restore_callbacks(*run_.parts, extra, found.path());
        run_.sums.restore(extra, found.path());
        if (auto text = restore_plan(run_, extra, found.path()); !text.empty())
            notices_.push_back(std::move(text));
        restore_metrics(extra, found);
        if (run_.scale) restore_scale(*run_.scale, extra);
        if (run_.total > 0 && run_.step > run_.total)
            throw error(errc::usage, fmt::format("the run has {} steps already, {} were asked for",
                                                 run_.step, run_.total))
                .with_where(found.path())
                .with_hint("ask for more steps, or another run name");
        if (run_.total == 0 || run_.step < run_.total)
            if (auto text = rate_notice(extra, run_.step, run_.scheduled_rate(run_.step));
                !text.empty())
                notices_.push_back(std::move(text));
        return saved_end(extra, found.path());
    }

    void restore_metrics(const json& extra, const loaded_checkpoint& found) {
        run_.training->restore(extra, found.path());
        if (run_.training->is_new_to(extra) && run_.step > 0)
            notices_.push_back(fmt::format(
                "the metrics of training count from step {} on: the checkpoint has none",
                run_.step + 1));
        newest_ = found.manifest().metrics;
    }

    /// What a checkpoint has besides the tensors, but for what is collective.
    [[nodiscard]] json extra(bool stop_wanted) const {
        json out = json::object();
        if (run_.scale)
            out["loss_scale"] = {{"value", run_.scale->value()},
                                 {"good_steps", run_.scale->good_steps()}};
        out["stop_wanted"] = stop_wanted;
        out["strategy"] = run_.parts->strategy_name(); // for people
        if (const auto* const average = run_.optimizer->average())
            out["evaluates_average"] = average->options().evaluate;
        if (config_.scaling.logical_shards > 0)
            out["logical_shards"] = config_.scaling.logical_shards;
        if (run_.asked != plan_of(config_) || run_.feeder->units())
            out["plan"] = saved_plan(run_.asked, config_, run_.feeder->units());
        if (!run_.sums.sums().empty()) out["epoch_sums"] = run_.sums.saved();
        if (!end_due_.empty())
            out["end_due"] = {{"schema", wire::schema_hash<carried_state>()}, {"state", end_due_}};
        for (const auto& each : run_.parts->states())
            out["callbacks"][each.name] = to_hex(as_bytes(std::string_view(each.state)));
        return out;
    }

    void save(const std::vector<metric_value>& evaluated) {
        if (!saves_.is_open()) return;
        tell_saved(saves_.settle()); // as callbacks know it, whose state is saved next
        run_.parts->sync_buffers();
        // Not those that have been granted, by a stop or by the run's end: who resumes it wants it
        // to go on.
        const double decided = run_.decided();
        double all[] = {run_.stop_wanted && !run_.stopped && !run_.is_last() ? 1.0 : 0.0, decided,
                        -decided};
        all_reduce(ctx_, all, dist::reduce_op::max);
        if (all[1] != -all[2]) plans_differ(ctx_, run_, run_.step + 1);
        auto more = extra(all[0] > 0); // the first rank's is written
        if (!run_.training->empty()) more["train_metrics"] = run_.training->save();
        if (run_.input->is_stream()) more["stream"] = run_.feeder->saved_stream();
        auto what =
            state_->save(run_.step, config_.seed,
                         {{"loss", run_.result.loss}, {"next_lr", run_.scheduled_rate(run_.step)}},
                         dump_json(more));
        what.metrics = chosen_by(run_, evaluated, newest_);
        // Where nothing comes after it, nothing is gained by a copy.
        const bool beside = !run_.stopped && !run_.is_last() && end_due_.empty();
        tell_saved(saves_.save(what, beside));
    }

    void finish_result(double seconds, double tokens_per_s) {
        report::metric_set m;
        m.max("rss", peak_rss_bytes());
        double decided[] = {run_.decided(), -run_.decided()};
        run_.result.peak_rss_bytes = merge(ctx_, m, decided)[0].value;
        if (decided[0] != -decided[1]) plans_differ(ctx_, run_, run_.step + 1);
        run_.result.steps = run_.step;
        run_.result.total = run_.total;
        run_.result.seconds = seconds;
        run_.result.tokens_per_s = tokens_per_s;
        run_.result.run_name = report_->name();
        run_.result.run_path = report_->path();
        if (config_.checkpoint.enabled && config_.checkpoint.keep_best.k > 0)
            run_.result.best_checkpoint = from_first(
                ctx_, ctx_.is_first() ? best_checkpoint_of(*ctx_.last_run()) : std::string());
        run_.result.stopped = run_.stopped && !run_.is_last();
    }

    run_state& run_;
    const context& ctx_;
    const run_config& config_;
    std::optional<evaluator> evaluator_;
    std::optional<training_state> state_;
    std::optional<reporter> report_;
    run_saves saves_{ctx_, config_};
    std::vector<std::uint64_t> evaluated_at_, told_at_; // steps, by set
    std::map<std::string, double> newest_;              // numbers by which checkpoints are chosen
    last_row last_;
    bool is_over_ = false, has_told_start_ = false;
    std::string end_due_;              // of the checkpoint that is being made, see keep_step()
    std::vector<run_event> events_;    // decisions behind the step that is committed last
    std::vector<std::string> notices_; // to be told when the run begins
};

} // namespace skein::train::detail

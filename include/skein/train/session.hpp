// SPDX-License-Identifier: Apache-2.0
#pragma once
// One training run as steps that a loop of your own drives; fit() is such a loop.
//
// A step has five phases: draw (which samples), compute (forward and backward passes), agree (the
// row: what all ranks report and decide together), apply (clip, optimizer, publish) and commit (the
// place in the data moves on; callbacks, evaluation, files and checkpoints). Until apply nothing
// that lasts has changed, and redo() takes the step back.
//
//     skein::Trainer<skein::DDP<>> trainer(ctx, config);
//     auto session = trainer.open(net, skein::AdamW{}, schedule);
//     session.evaluate_on(net, loss, held_out);
//     for (auto& step : session.steps(data)) {
//         for (auto& micro : step) session.backward(loss(net, micro));
//         session.report(skein::report::metric_kind::sum, "seen", 12);
//     }
//     const auto result = session.finish();

#include <skein/core/error.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/settings.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/input.hpp>
#include <skein/train/loss.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/schedule.hpp>
#include <skein/train/stage.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

/// Where a session stands between two calls.
enum class step_phase : std::uint8_t {
    idle,      ///< the last step is committed, or taken back
    drawn,     ///< its samples are known
    computing, ///< some micro-batches have been through the model
    /// all ranks know its row; the reduced gradients are there until the next step is drawn
    agreed,
    applied, ///< the parameters are new
};

/// Thrown by a loss function under fit(), on every rank alike: the step is taken back and begins
/// again.
struct redo_step {};

/// What a loss may be: a tensor, or a tensor with its weight.
template <class R>
concept loss_value = std::convertible_to<R, at::Tensor> || std::convertible_to<R, weighted_loss>;

/// loss(model, batch), loss(model, batch, metric_set&) or loss(model, batch, stage&): a scalar
/// tensor, the mean over the batch's samples, or a weighted_loss. The second form may report more
/// numbers, which an evaluation reports as "val_<name>"; the third shows the stage's metrics what
/// the model said, see train/stage.hpp.
template <class L, class Model, class Batch>
concept loss_function = loss_value<std::invoke_result_t<L&, Model&, const Batch&>> ||
                        loss_value<std::invoke_result_t<L&, Model&, const Batch&, stage&>>;

} // namespace skein::train

#include <skein/train/detail/session_seam.hpp>

namespace skein::train {

class session;

/// The step that is drawn: its micro-batches of this rank, each to be given to session::backward().
template <class Batch>
class step_view {
public:
    class iterator {
    public:
        using value_type = Batch;
        using difference_type = std::ptrdiff_t;
        const Batch& operator*() const { return *static_cast<const Batch*>(batch_); }
        iterator& operator++();
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator& it, std::default_sentinel_t) {
            return it.batch_ == nullptr;
        }

    private:
        friend class step_view;
        explicit iterator(session& of);
        session* of_;
        const void* batch_;
    };

    explicit step_view(session& of) : of_(&of) {}
    [[nodiscard]] iterator begin() { return iterator(*of_); }
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

    [[nodiscard]] std::uint64_t number() const; ///< from 1
    [[nodiscard]] double loss() const;          ///< so far, of this rank

private:
    session* of_;
};

/// Steps to the end of the run. Leaving one agrees, applies and commits it; after redo() it comes
/// again.
template <class Batch>
class step_range {
public:
    class iterator {
    public:
        using value_type = step_view<Batch>;
        using difference_type = std::ptrdiff_t;
        step_view<Batch>& operator*() const { return range_->view_; }
        iterator& operator++();
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator& it, std::default_sentinel_t) { return it.at_end(); }

    private:
        friend class step_range;
        [[nodiscard]] bool at_end() const { return !range_->more_; }
        explicit iterator(step_range& range) : range_(&range) {}
        step_range* range_;
    };

    explicit step_range(session& of) : of_(&of), view_(of) {}
    [[nodiscard]] iterator begin();
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

private:
    session* of_;
    step_view<Batch> view_;
    bool more_ = false;
};

/// A run: made by Trainer::open(), which must outlive it, as must model and data. All ranks make
/// the same calls. An error that leaves a member is told to the other ranks; one that passes the
/// session by ends their next exchange with them knowing that this rank has left because of an
/// exception.
class session {
public:
    /// Makes the strategy. Throws errc::mismatch when the ranks' settings differ, and what it
    /// throws.
    session(const session_request& request, const detail::make_parts& make);
    session(const session&) = delete;
    session& operator=(const session&) = delete;
    ~session();

    /// Before the first step, once for each set: evaluates as run_config says, or the set itself
    /// (train/evaluation.hpp). Data without a name is "val". Model, loss and data must outlive the
    /// session.
    ///   errors  already_exists for a name that is taken, usage for one that cannot be one
    template <class Model, class Loss, evaluation_input HeldOut>
    void evaluate_on(Model& model, Loss& loss, const HeldOut& held_out) {
        const auto set = detail::named_evaluation(held_out);
        const auto* const data = &set.data();
        detail::require_loss<Loss, Model, batch_of<decltype(*data)>>();
        use_evaluation(
            set.name(),
            {static_cast<std::uint64_t>(data->size()),
             [data](std::span<const std::uint64_t> ids) {
                 return detail::sample_sum::of(data->batch(ids));
             }},
            set.options(),
            [&loss, &model, data](std::span<const std::uint64_t> ids,
                                  train::stage& here) -> std::optional<detail::evaluated_loss> {
                const auto batch = data->batch(ids);
                const auto samples = detail::samples_made(*data, batch, ids.size());
                if (samples == 0) return std::nullopt;
                here.numbers().weigh(static_cast<double>(samples));
                return detail::evaluated_loss{detail::call_loss(loss, model, batch, here), samples};
            },
            detail::loss_reports<Loss, Model, batch_of<decltype(*data)>>);
    }
    /// Training, for loops of your own: shows its metrics what the model said. An evaluation's
    /// stage is the third argument of its loss.
    [[nodiscard]] train::stage& stage();
    /// Before the first step, on every rank: backward() gets weighted losses.
    void expect_weights() noexcept;

    /// The steps that are left, for a range-based for. Resumes first, if that is asked for. Once.
    template <class Data>
        requires train_input<Data>
    [[nodiscard]] step_range<batch_of<Data>> steps(Data& data) {
        begin(detail::make_input(data));
        return step_range<batch_of<Data>>(*this);
    }

    /// The backward pass of the micro-batch in hand. The gradient is that of the mean over the
    /// global batch, however its samples fall on ranks and micro-batches.
    ///   mean  over the micro-batch's samples, one number
    void backward(const at::Tensor& mean) { backward(weighted_loss{mean, {}}); }
    void backward(const weighted_loss& loss);

    /// A number of this rank for the row of this step; see Trainer::report().
    void report(report::metric_kind kind, std::string_view name, double value,
                std::optional<double> weight = {});
    /// The same for several: {{"loss2", 0.3}, {"seen", skein::report::sum(64)}}.
    void report(std::initializer_list<report::named_number> numbers) {
        for (const auto& [name, number] : numbers)
            report(number.kind, name, number.value, number.weight);
    }
    /// For train/accumulator.hpp: a number of this rank for the sums of the epoch. It counts with the
    /// step in hand; what is added behind a step that was taken back is part of none.
    ///   errors  usage without a step in hand, also behind the last one of an epoch's loop, and for a
    ///           name that cannot be one
    void accumulate(std::string_view name, double more);
    /// For loops over epochs: the steps of another one are none of this loop.
    void enter_epoch(std::uint64_t epoch) noexcept { in_epoch_ = epoch; }
    /// The sums over all ranks and the steps of an epoch that are committed, and which epoch that is.
    [[nodiscard]] const std::map<std::string, double>& epoch_sums() const noexcept;
    [[nodiscard]] std::uint64_t epoch_of_sums() const noexcept;
    /// Of the step in hand, else of the next one; from 0. Behind the last step: how many there were.
    [[nodiscard]] std::uint64_t current_epoch() const noexcept;
    /// Passes over the data that are finished.
    [[nodiscard]] std::uint64_t finished_epochs() const noexcept;
    /// Throws errc::usage when the run is not so many epochs long.
    void require_epochs(std::int64_t count) const;
    /// Training ends after the step that agrees on it next, on all ranks.
    void request_stop() noexcept;

    // ---- the phases one by one; steps() calls those that a loop leaves out ----------------------

    void begin(std::unique_ptr<detail::input_source> input);
    /// False: the run is at its end, or was asked to stop.
    [[nodiscard]] bool draw();
    /// The next micro-batch of this rank, a Batch of the data; null after the last.
    [[nodiscard]] const void* next_micro();
    void agree();
    void apply();
    void commit();
    /// What is left of the step. Nothing after redo().
    void complete();
    /// Takes back a step that is not applied: the next draw() gives the same samples, and the step
    /// has the same bits as if it had run once: generators, the model's buffers and reported
    /// numbers included. Collective when the backward pass has begun: its exchanges come to an end
    /// first.
    void redo();

    /// Fails every exchange of the session, here and at the peers, with this reason: so that all
    /// ranks leave for another generation, or end. From the session's thread; another one calls
    /// ctx.comm()->abort().
    void abort(const error& why) noexcept;
    /// After context::rebind(), on every rank of the new generation: goes on with its groups. A
    /// step that is not applied is given up, without the ranks of before, and drawn again by the
    /// ranks of now; one that is applied everywhere wants its commit(); an evaluation or checkpoint
    /// that broke is made here. With steps() in a loop: leave it, rebind, and begin the same range
    /// anew.
    ///   errors  mismatch when some ranks have applied a step and others have not; not_supported
    ///           for ranks that were not there from the beginning, and when a shard or a place in a
    ///           stream is lost: all are told, and a run resumes from its last checkpoint
    void rebind();

    [[nodiscard]] step_phase phase() const noexcept;
    [[nodiscard]] std::uint64_t finished() const noexcept; ///< steps
    [[nodiscard]] double micro_loss() const noexcept; ///< mean of the step so far, of this rank

    /// The last evaluation, files, callbacks. The module is whole again on every rank. A step that
    /// is not committed is given up.
    [[nodiscard]] fit_result finish();

    /// All steps with a loss that is called here: fit().
    [[nodiscard]] fit_result run(const detail::batch_loss& loss);
    ///   reports  the loss may report numbers of its own
    void use_evaluation(std::string name, detail::sample_range data, const evaluation_options& how,
                        detail::numbered_loss loss, bool reports = true);

private:
    std::unique_ptr<detail::session_core> core_;
    std::optional<std::uint64_t> in_epoch_; // of a loop over epochs
};

template <class Batch>
step_view<Batch>::iterator::iterator(session& of) : of_(&of), batch_(of.next_micro()) {}
template <class Batch>
typename step_view<Batch>::iterator& step_view<Batch>::iterator::operator++() {
    batch_ = of_->next_micro();
    return *this;
}
template <class Batch>
std::uint64_t step_view<Batch>::number() const {
    return of_->finished() + 1;
}
template <class Batch>
double step_view<Batch>::loss() const {
    return of_->micro_loss();
}
template <class Batch>
typename step_range<Batch>::iterator step_range<Batch>::begin() {
    if (of_->phase() == step_phase::applied) of_->commit(); // applied before a rebind()
    more_ = of_->draw();
    return iterator(*this);
}
template <class Batch>
typename step_range<Batch>::iterator& step_range<Batch>::iterator::operator++() {
    range_->of_->complete();
    range_->more_ = range_->of_->draw();
    return *this;
}

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/session.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a Trainer tells while it runs, and how callbacks are found.
//
// A callback is any object with one or more of the members below; a member that is absent costs
// nothing, one with the wrong parameter is refused at compile time. Every rank calls its callbacks.
//
//     struct log_loss {
//         void on_step(const skein::train::step_info& s) { fmt::print("{} {}\n", s.step, s.loss); }
//     };
//     skein::Trainer<skein::DDP<>, log_loss> trainer(ctx, config, log_loss{});
//
// on_step and on_eval may return an action. A stop that some rank's callback asks for travels with
// the row of the next step, as a signal does: all ranks end after that step, with a checkpoint. A
// callback that says why, by a member std::string stop_reason() const, has it printed at the end;
// empty while there is nothing.
//
// They may also return a decision, which can change the plan of the steps that follow
// (train/step_plan.hpp). Every rank must decide alike: from merged numbers, which are the same on
// all. Ranks whose plans differ end with errc::mismatch at the next step. A decision is a line and a
// row of the run's events.jsonl, under the callback's `static constexpr std::string_view rule_name`,
// else under the name of its type.
//
// on_agreed(const step_info&) hears of a step before its gradients are applied, and may return a
// verdict or a ruling: the step can be left out. With it numbers that are not finite come to the
// callback first; nobody leaving the step out, they end the run. A step that overflowed float16 is
// left out already: nobody is asked.
//
// A callback that wants to see gradients says so by gradient_look look() const: see gradient_look.hpp.
//
// A callback with both of these members has its state in every checkpoint, by the name of its type:
//
//     std::string state() const;                // asked of rank 0 after the events of the step
//     void restore(std::string_view state);     // on every rank, before on_start
//
// More that a callback may say of steps (its rate, what it is worth, a word of rank 0, another world)
// is in train/steering.hpp.

#include <skein/goodput/gradient_noise.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/gradient_look.hpp>
#include <skein/train/steering.hpp>
#include <skein/train/step_plan.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

/// Before the first step.
struct start_info {
    int rank = 0, world_size = 1;
    std::uint64_t first_step = 0;  ///< finished steps; > 0 after a resume
    std::uint64_t total_steps = 0; ///< 0: as many as a stream gives in config.epochs
    std::int64_t parameters = 0;   ///< trainable elements
    std::string run_path{};
    std::string resumed_from{}; ///< a checkpoint, or empty
    std::string strategy{};     ///< "DDP"; empty for one without a name
    std::string optimizer{};    ///< "AdamW", as its description says
    std::uint64_t samples = 0;  ///< of the data set; 0: a stream, not known
    /// "3 epochs of 120 steps, ..."; empty when the steps were given.
    std::string epochs{};
    std::vector<std::string> evaluations{}; ///< names of the evaluation sets that have samples
    std::vector<std::string> numbers{}; ///< of evaluations, as far as they are known: "val_loss"
    std::vector<std::string> open{};    ///< sets whose loss may report numbers besides those
    /// Metrics of training: "train_<name>" and "train_epoch_<name>", in the rows where they are due.
    std::vector<std::string> training{};
};

/// What a callback wants to happen next.
enum class action : std::uint8_t {
    go_on,
    stop, ///< training ends after the next step, on all ranks
};

/// What a callback decides: also about the steps that follow.
struct decision {
    action act = action::go_on;
    std::optional<step_plan> plan{}; ///< from the next step on; nothing: as before
    std::string why{};               ///< for a person, e.g. "val_loss has not improved since 300"
};

/// What becomes of a step that the ranks have agreed on.
enum class verdict : std::uint8_t {
    apply,
    leave_out, ///< the parameters stay, the data moves on: as with an overflow of float16
    end,       ///< the run ends here, with errc::not_finite
};

/// A verdict and its reason, for a person.
struct ruling {
    verdict what = verdict::apply;
    std::string why{};
};

/// Where the time of a step went, in seconds of the slowest rank, each number by itself.
struct step_timing {
    double data = 0.0;      ///< waited for batches: all of making them without prefetching
    double forward = 0.0;   ///< the model and the loss
    double backward = 0.0;  ///< the backward pass; gradients travel meanwhile
    double early = 0.0;     ///< part of both: of the micro-batches before the last one
    double exposed = 0.0;   ///< the compute thread waited for other ranks since the row before
    double optimizer = 0.0; ///< of the step before: it comes behind the row
    /// Share of the time gradients travelled that was hidden behind the backward pass, 0 to 1; of
    /// the rank with the least. Of the world's communicator: what groups of a part of the ranks do
    /// is not in it.
    double overlap = 0.0;
};

/// After every optimizer step; before it, without its times, for on_agreed.
struct step_info {
    int rank = 0;
    std::uint64_t step = 0; ///< finished steps, this one included
    double loss = 0.0;      ///< mean over the global batch
    double lr = 0.0;
    double grad_norm = 0.0;    ///< before clipping
    double seconds = 0.0;      ///< of this step
    double tokens_per_s = 0.0; ///< of this step, over all ranks; samples when tokens are unknown
    std::uint64_t batch = 0;   ///< samples of this step, over all ranks
    std::int64_t micro_batches = 1; ///< of each rank in this step
    const std::vector<report::metric_value>* metrics =
        nullptr; ///< everything reported, merged over ranks; metrics of training when due
    const std::vector<report::metric_array>* arrays =
        nullptr; ///< metrics that are no single numbers, when due
    step_timing timing{};
    const step_plan* plan = nullptr; ///< in force: of the next step, with what callbacks before
                                     ///< this one decided; in on_agreed of this step
    double next_rate = 0.0;          ///< what the schedule alone gives for the next step
    std::uint64_t epoch = 0;         ///< passes over the data that are finished
    step_timing own{};               ///< as `timing`, of this rank alone: parts of since_row
    double since_row = 0.0;          ///< seconds since the row before, with all that lay between
    std::span<const double> word{};  ///< of rank 0, as this callback has given it (train/steering.hpp)
    /// By optimizer parameter group, those of no group last, where a callback looks: of the
    /// gradients of all ranks, micro-batches and shards, before clipping. Zeros of a frozen group.
    /// Null where nobody looks, and where the step has no number: one gradient and none before it,
    /// or one that is not finite.
    const std::vector<goodput::gradient_squares>* squares = nullptr;
    bool squares_are_differenced =
        false; ///< of this step and the one before: goodput::differenced()
};

/// After every evaluation, of each set by itself.
struct eval_info {
    int rank = 0;
    std::uint64_t step = 0;
    std::string_view set = "val"; ///< its name, with which those of its numbers begin
    /// False: it was made for a checkpoint alone, whose rhythm has nothing to say about patience;
    /// rules and early stopping pass over it.
    bool is_due = true;
    const std::vector<report::metric_value>* metrics =
        nullptr; ///< "val_loss", what the loss reported, and metrics that are one number
    const std::vector<report::metric_array>* arrays =
        nullptr; ///< metrics that are more, e.g. "val_confusion"
    double seconds = 0.0;
    const step_plan* plan = nullptr; ///< as in step_info
    double next_rate = 0.0;          ///< likewise
    std::uint64_t epoch = 0;         ///< likewise
};

/// After every checkpoint that is durable.
struct checkpoint_info {
    int rank = 0;
    std::uint64_t step = 0;
    std::string path{};
    std::uint64_t bytes = 0;
    double seconds = 0.0;
};

/// How a run ended; also what fit() returns.
struct fit_result {
    int rank = 0;
    std::uint64_t first_step = 0; ///< where this start of the program began
    std::uint64_t steps = 0;      ///< finished
    std::uint64_t total = 0;      ///< asked for; of a stream with epochs what they came to
    double loss = 0.0;            ///< of the last step
    double val_loss = 0.0;        ///< of the first set's last evaluation; NaN without one
    std::uint64_t val_step = 0;   ///< after which step that was
    double seconds = 0.0;         ///< of this start, evaluation and saving included
    double tokens_per_s = 0.0;    ///< of the training steps of this start
    /// The newest of each metric of training and of every evaluation set, of this start.
    std::vector<report::metric_value> metrics{};
    std::vector<report::metric_array> arrays{};
    double peak_rss_bytes = 0.0;                      ///< the largest of all ranks
    std::string run_name{}, run_path{}, checkpoint{}; ///< the newest checkpoint
    std::string best_checkpoint{}; ///< by config's keep_best, of those that are there; or empty
    bool stopped = false;          ///< ended early because it was asked to
    int stop_signal = 0;           ///< by SIGINT or SIGTERM on some rank; 0 when it was no signal
    std::string stop_reason{};     ///< of the callback that asked for it, when it says one
};

/// Has at least one of the members; whether they fit is checked where they are called.
template <class C>
concept callback =
    requires(C& c, const start_info& e) { c.on_start(e); } || requires { &C::on_start; } ||
    requires(C& c, const step_info& e) { c.on_agreed(e); } || requires { &C::on_agreed; } ||
    requires(C& c, const step_info& e) { c.on_step(e); } || requires { &C::on_step; } ||
    requires(C& c, const eval_info& e) { c.on_eval(e); } || requires { &C::on_eval; } ||
    requires(C& c, const checkpoint_info& e) { c.on_checkpoint(e); } ||
    requires { &C::on_checkpoint; } || requires(C& c, const fit_result& e) { c.on_end(e); } ||
    requires { &C::on_end; } || detail::sets_rate<C> || detail::measures_gain<C> ||
    requires { &C::on_world; };

namespace detail {

// One function per event. `&C::on_x` finds a member of that name that cannot take the event.

/// Calls it; what it returns if that is a decision or an action.
template <class Call>
decision decision_of(Call call) {
    using returned = std::remove_cvref_t<decltype(call())>;
    if constexpr (std::is_same_v<returned, decision>) {
        return call();
    } else if constexpr (std::is_same_v<returned, action>) {
        return {.act = call()};
    } else {
        call();
        return {};
    }
}
template <class C>
void tell(C& c, const start_info& info) {
    if constexpr (requires { c.on_start(info); })
        c.on_start(info);
    else
        static_assert(!requires { &C::on_start; }, "on_start must take const train::start_info&");
}
template <class C>
decision tell(C& c, const step_info& info) {
    if constexpr (requires { c.on_step(info); })
        return decision_of([&]() -> decltype(auto) { return c.on_step(info); });
    else
        static_assert(!requires { &C::on_step; }, "on_step must take const train::step_info&");
    return {};
}
template <class C>
decision tell(C& c, const eval_info& info) {
    if constexpr (requires { c.on_eval(info); })
        return decision_of([&]() -> decltype(auto) { return c.on_eval(info); });
    else
        static_assert(!requires { &C::on_eval; }, "on_eval must take const train::eval_info&");
    return {};
}
template <class C>
void tell(C& c, const checkpoint_info& info) {
    if constexpr (requires { c.on_checkpoint(info); })
        c.on_checkpoint(info);
    else
        static_assert(
            !requires { &C::on_checkpoint; },
            "on_checkpoint must take const train::checkpoint_info&");
}
template <class C>
void tell(C& c, const fit_result& info) {
    if constexpr (requires { c.on_end(info); })
        c.on_end(info);
    else
        static_assert(!requires { &C::on_end; }, "on_end must take const train::fit_result&");
}

/// Looks at gradients.
template <class C>
concept looks = requires(const C& c) { c.look(); };
/// What the callbacks want to see together.
template <class... Callbacks>
gradient_look look_of(const std::tuple<Callbacks...>& callbacks) {
    gradient_look all{.is_on = false, .differences = false};
    const auto add = [&]<class C>(const C& c) {
        if constexpr (looks<C>) {
            static_assert(std::is_same_v<std::remove_cvref_t<decltype(c.look())>, gradient_look>,
                          "look() must return a train::gradient_look");
            all.add(c.look());
        } else {
            static_assert(
                !requires { &C::look; }, "look() must be a const member without arguments");
        }
    };
    std::apply([&](const auto&... c) { (add(c), ...); }, callbacks);
    return all;
}

/// Hears of steps before they are applied.
template <class C>
concept judges = requires(C& c, const step_info& info) { c.on_agreed(info); };
template <class C>
ruling judge(C& c, const step_info& info) {
    if constexpr (judges<C>) {
        using returned = std::remove_cvref_t<decltype(c.on_agreed(info))>;
        if constexpr (std::is_same_v<returned, ruling>) {
            return c.on_agreed(info);
        } else if constexpr (std::is_same_v<returned, train::verdict>) {
            return {.what = c.on_agreed(info)};
        } else {
            c.on_agreed(info);
            return {};
        }
    } else {
        static_assert(!requires { &C::on_agreed; }, "on_agreed must take const train::step_info&");
        return {};
    }
}

/// May change the plan of a run.
template <class C>
concept plans = requires(C& c, const step_info& info) {
    { c.on_step(info) } -> std::same_as<decision>;
} || requires(C& c, const eval_info& info) {
    { c.on_eval(info) } -> std::same_as<decision>;
} || steers_worlds<C>;
/// May change the samples of a step; a rule that never does says so.
template <class C>
[[nodiscard]] consteval bool changes_batch() {
    if constexpr (requires { C::changes_batch; })
        return C::changes_batch;
    else
        return plans<C>;
}

/// Has state that goes into checkpoints.
template <class C>
concept keeps_state = requires(C& c, const C& fixed, std::string_view saved) {
    { fixed.state() } -> std::convertible_to<std::string>;
    c.restore(saved);
};

/// States are kept by the name of the type: of two of one type only one would come back.
template <class... C>
[[nodiscard]] consteval bool states_are_apart() {
    const auto is_alone = []<class One>(std::type_identity<One>) {
        return !keeps_state<One> || (std::size_t(std::same_as<One, C>) + ... + 0) == 1;
    };
    return (is_alone(std::type_identity<C>()) && ...);
}

} // namespace detail

} // namespace skein::train

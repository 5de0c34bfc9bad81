// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a callback may say of steps besides what it decides behind them: a factor of the rate for each
// step, what a step of a larger batch is worth, a word of rank 0 that all ranks hear, and what is to
// be done in another world.
//
// Members of a callback (train/callbacks.hpp), each found by its name; all ranks must answer alike:
//
//     double rate(const rate_info&) const;
//     double gain(double scale) const;
//     decision on_world(const world_change&);
//     static constexpr std::size_t word_size = 2;   // at most 8
//     std::array<double, 2> word();                 // asked of rank 0 alone
//
// rate: a factor on what the schedule and the plan give, for one step. The factors of several
// callbacks are multiplied. It is no event and no row of its own: the column `lr` has it.
//
// gain: steps of the first batch that one of `scale` times its samples is worth, 1 to scale. With it
// the run's length, its epochs, its schedule and its evaluations go by what training has come to and
// not by samples: a run ends once it has come to as many steps of the first batch as it was asked
// for. Of one callback at most; not with streams.
//
// word: numbers that rank 0 alone can know, a measured time for one. They travel with the row of the
// step, and every rank reads them in step_info::word. Numbers that are not finite travel, too.
//
// on_world: asked in each world before its first draw, the first one too, with the plan that rules had
// asked for in steps. What it returns lasts as long as the world: it is asked again in the next, from
// the same plan. Of a world that breaks at once some ranks may not hear: what it keeps may not
// depend on how often it was asked. A plan that does not fit into the world is cut to what does,
// and that is an event.

#include <skein/train/step_plan.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

namespace skein::train {

struct decision;

/// A step whose gradients are there.
struct rate_info {
    std::uint64_t step = 0;          ///< this one; the first is 1
    std::uint64_t batch = 0;         ///< its samples
    std::uint64_t first_batch = 0;   ///< those of the run's first step
    double progress = 0.0;           ///< steps of the first batch that were come to before
    const step_plan* plan = nullptr; ///< in force
};

/// Ranks that train together from now on.
struct world_change {
    int rank = 0, world_size = 1;
    int hosts = 1;
    std::uint64_t step = 0;          ///< finished; 0: the run begins here
    std::uint64_t first_batch = 0;   ///< samples of the run's first step
    std::uint64_t samples = 0;       ///< of the data set; 0: a stream
    int shards = 0;                  ///< logical ones that every batch has; 0: none
    const step_plan* plan = nullptr; ///< that rules have asked for in steps
};

namespace detail {

template <class C>
concept sets_rate = requires(const C& c, const rate_info& info) {
    { c.rate(info) } -> std::convertible_to<double>;
};
template <class C>
[[nodiscard]] double rate_of([[maybe_unused]] const C& c, [[maybe_unused]] const rate_info& info) {
    if constexpr (sets_rate<C>) return c.rate(info);
    return 1.0;
}

template <class C>
concept measures_gain = requires(const C& c, double scale) {
    { c.gain(scale) } -> std::convertible_to<double>;
};

/// Numbers of its word; 0: it has none.
template <class C>
[[nodiscard]] consteval std::size_t word_size_of() {
    if constexpr (requires { C::word_size; }) {
        static_assert(C::word_size >= 1 && C::word_size <= 8, "a word has 1 to 8 numbers");
        static_assert(
            requires(C& c) {
                { c.word() } -> std::convertible_to<std::array<double, C::word_size>>;
            }, "word() must return std::array<double, word_size>");
        return C::word_size;
    } else {
        return 0;
    }
}

template <class C>
concept steers_worlds = requires(C& c, const world_change& info) { c.on_world(info); };
template <class C>
[[nodiscard]] consteval bool hears_worlds() {
    if constexpr (!steers_worlds<C>)
        static_assert(
            !requires { &C::on_world; },
            "on_world must be train::decision on_world(const train::world_change&)");
    return steers_worlds<C>;
}

} // namespace detail

/// The plan as near to what was asked for as a world can hold: fewer micro-batches where a rank would
/// have some without a sample. A batch that has less than a sample per rank stays as it is:
/// check_plan() says so.
[[nodiscard]] inline step_plan fitted(step_plan plan, const plan_limits& limits) noexcept {
    const auto most = plan.global_batch / (limits.world_size > 0 ? limits.world_size : 1);
    if (plan.micro_batches > most && most >= 1) plan.micro_batches = most;
    return plan;
}

} // namespace skein::train

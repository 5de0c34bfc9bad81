// SPDX-License-Identifier: Apache-2.0
#include <skein/train/detail/run_length.hpp>
#include <skein/train/step_plan.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>

using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace step_plan_test {

namespace {

/// What is said of a plan that nobody can hold; empty when it is fine.
std::string refused(const step_plan& plan) {
    try {
        check_plan(plan, {.world_size = 2, .samples = 100}, "a rule", 7);
    } catch (const skein::error& why) {
        CHECK(why.code() == skein::errc::usage);
        return why.what();
    }
    return {};
}

struct walked {
    std::uint64_t steps = 0, units = 0;
    std::vector<std::uint64_t> schedule; ///< where it stands before each step
};

/// Walks with a real sampler to the end of a run whose batch is another one from a step on.
walked walk(const run_config& config, std::uint64_t samples, std::uint64_t change,
            std::uint64_t other) {
    const auto first = static_cast<std::uint64_t>(config.global_batch);
    sampler order({.samples = samples, .batch = first, .seed = 1, .last = config.last});
    skein::train::detail::run_length length(config, samples, total_steps(config, samples));
    skein::train::detail::run_progress at;
    walked out;
    for (auto batch = first;; ++out.steps) {
        if (out.steps == change) batch = other;
        at.epoch = order.state().epoch;
        at.within = order.state().cursor;
        const auto left = length.steps_left(at, batch);
        if (left == 0) break;
        out.schedule.push_back(length.first_steps(at, batch));
        const auto asked = length.most(at, batch);
        order.deal_by(asked);
        const auto count = order.next(0, 1).global_batch;
        length.take(at, count, asked);
        at.epoch = order.state().epoch;
        at.within = order.state().cursor;
        if (out.steps + 1 != change && length.steps_left(at, batch) != left - 1) {
            FAIL("after step " << out.steps << " " << length.steps_left(at, batch)
                               << " steps are left, before it " << left);
        }
    }
    out.units = length.units(at, 1);
    return out;
}

} // namespace

TEST_CASE("a plan begins as the run's settings say, and plans that are equal have one hash") {
    const run_config config{.global_batch = 32, .accumulation = 2, .clip = 0.5};
    const auto plan = plan_of(config);
    CHECK(plan == step_plan{32, 2, 1.0, 0.5});
    CHECK(hash_of(plan) == hash_of(plan_of(config)));
    for (const auto& other : {step_plan{33, 2, 1.0, 0.5}, step_plan{32, 1, 1.0, 0.5},
                              step_plan{32, 2, std::nextafter(1.0, 2.0), 0.5}, step_plan{32, 2}})
        CHECK(hash_of(other) != hash_of(plan));
    CHECK(to_string(plan) == "32 samples in 2 micro-batches per rank, rate x 1, clip 0.5");
}

TEST_CASE(
    "a plan that nobody can hold is refused with who asks for it, the number and what to do") {
    CHECK(refused({100, 50, 0.0, 0.0}).empty());
    CHECK_THAT(refused({0, 1}), ContainsSubstring("a rule asks for a global batch of 0 samples "
                                                  "after step 7"));
    CHECK_THAT(refused({1, 1}),
               ContainsSubstring("a global batch of 1 samples, which cannot feed 2 ranks with 1 "
                                 "micro-batches") &&
                   ContainsSubstring("at least 2"));
    CHECK_THAT(refused({8, 5}), ContainsSubstring("at least 10"));
    CHECK_THAT(refused({101, 1}), ContainsSubstring("101 samples, the data set has 100") &&
                                      ContainsSubstring("max of at most 100"));
    CHECK_THAT(refused({8, 0}), ContainsSubstring("0 micro-batches"));
    const auto none = std::numeric_limits<double>::quiet_NaN();
    CHECK_THAT(refused({8, 1, none}), ContainsSubstring("a rate factor of nan"));
    CHECK_THAT(refused({8, 1, -0.5}), ContainsSubstring("a rate factor of -0.5"));
    CHECK_THAT(refused({8, 1, 1.0, none}), ContainsSubstring("a clip of nan"));
    CHECK_THAT(refused({8, 1, 1.0, -1.0}), ContainsSubstring("a clip of -1"));
}

TEST_CASE(
    "a run of one batch size is as long as its settings say, and its schedule goes by steps") {
    for (const auto last : {last_batch::drop, last_batch::shorten, last_batch::carry})
        for (const std::int64_t epochs : {0, 1, 3})
            for (const std::uint64_t samples : {16u, 60u, 61u}) {
                run_config config{
                    .max_steps = 23, .epochs = epochs, .last = last, .global_batch = 16};
                const auto out = walk(config, samples, 1000, 0);
                INFO(samples << " samples, " << epochs << " epochs, " << static_cast<int>(last));
                CHECK(out.steps == total_steps(config, samples));
                for (std::uint64_t step = 0; step < out.steps; ++step)
                    CHECK(out.schedule[step] == step);
            }
}

TEST_CASE("a run whose batch changes has as many samples, and its schedule comes to its end") {
    for (const auto last : {last_batch::drop, last_batch::shorten, last_batch::carry})
        for (const std::int64_t epochs : {0, 3})
            for (const std::uint64_t change : {1u, 4u, 5u})
                for (const std::uint64_t other : {5u, 32u, 48u, 61u}) {
                    run_config config{
                        .max_steps = 23, .epochs = epochs, .last = last, .global_batch = 16};
                    const auto out = walk(config, 61, change, other);
                    INFO("batches of " << other << " from step " << change << ", " << epochs
                                       << " epochs, " << static_cast<int>(last));
                    if (epochs == 0 || last == last_batch::carry)
                        CHECK(out.units == 16 * total_steps(config, 61));
                    for (std::uint64_t step = 1; step < out.steps; ++step)
                        CHECK(out.schedule[step] >= out.schedule[step - 1]);
                    CHECK(out.schedule.back() < total_steps(config, 61));
                }
    // 61 samples in 16, 16, then 32 with a short rest; two more epochs of two steps.
    const run_config config{.epochs = 3, .last = last_batch::shorten, .global_batch = 16};
    CHECK(walk(config, 61, 2, 32).schedule == std::vector<std::uint64_t>{0, 1, 2, 4, 6, 8, 10});
}

} // namespace step_plan_test

// SPDX-License-Identifier: Apache-2.0
#include <skein/train/batch_growth.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>

namespace sk = skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace batch_growth_test {

namespace {
/// The plan behind a step, with so many epochs finished.
step_plan after(sk::batch_growth& rule, const step_plan& plan, std::uint64_t step,
                std::uint64_t epoch, double val_loss = 1.0) {
    const std::vector<skein::report::metric_value> metrics{{"val_loss", val_loss}};
    const auto made =
        rule.on_step({.step = step, .metrics = &metrics, .plan = &plan, .epoch = epoch});
    const auto now = made.plan.value_or(plan);
    return rule.on_eval({.step = step, .metrics = &metrics, .plan = &now}).plan.value_or(now);
}
} // namespace

TEST_CASE("the batch grows by epochs, at epochs and at steps, up to its max") {
    sk::batch_growth by({.every_epochs = 2, .max = 100});
    step_plan plan{.global_batch = 16};
    for (std::uint64_t epoch = 0; epoch < 10; ++epoch)
        for (int twice = 0; twice < 2; ++twice) { // once for each condition that is met
            plan = after(by, plan, epoch, epoch);
            CHECK(plan.global_batch == (epoch < 2 ? 16 : epoch < 4 ? 32 : epoch < 6 ? 64 : 100));
        }
    sk::batch_growth at({.factor = 1.5, .at_epochs = {1}, .at_steps = {3, 4}});
    plan = {.global_batch = 5};
    CHECK((plan = after(at, plan, 2, 0)).global_batch == 5);
    CHECK((plan = after(at, plan, 3, 0)).global_batch == 8);
    CHECK((plan = after(at, plan, 4, 1)).global_batch == 18); // twice at once
    CHECK((plan = after(at, plan, 5, 1)).global_batch == 18);
}

TEST_CASE("a small batch grows by a small factor, too") {
    sk::batch_growth rule({.factor = 1.1, .at_steps = {1, 2}});
    step_plan plan{.global_batch = 2}; // 2.2 would be 2 for ever
    CHECK((plan = after(rule, plan, 1, 0)).global_batch == 3);
    CHECK((plan = after(rule, plan, 2, 0)).global_batch == 4);
}

TEST_CASE("the batch grows when a number has stopped improving") {
    sk::batch_growth rule({.plateau = plateau_options{.patience = 1}});
    step_plan plan{.global_batch = 4};
    for (int i = 0; i < 3; ++i) plan = after(rule, plan, 1, 0, 2.0 - i);
    CHECK(plan.global_batch == 4);
    plan = after(rule, plan, 1, 0, 0.0);
    CHECK(plan.global_batch == 4);
    CHECK(after(rule, plan, 1, 0, 0.0).global_batch == 8);
}

TEST_CASE("the rate grows with the batch as it is asked for, and micro-batches may, too") {
    const step_plan plan{.global_batch = 16, .micro_batches = 2, .rate_factor = 0.5};
    const auto grown = [&](sk::batch_growth_options how) {
        how.at_steps = {1};
        sk::batch_growth rule(how);
        return after(rule, plan, 1, 0);
    };
    CHECK(grown({}) == step_plan{32, 2, 0.5});
    CHECK(grown({.factor = 4, .rate = sk::batch_growth_rate::linear}) == step_plan{64, 2, 2.0});
    CHECK(grown({.factor = 4, .rate = sk::batch_growth_rate::sqrt}) == step_plan{64, 2, 1.0});
    CHECK(grown({.factor = 4, .max = 32, .rate = sk::batch_growth_rate::linear}) ==
          step_plan{32, 2, 1.0}); // by what it has grown
    CHECK(grown({.factor = 2.5, .more_micro_batches = true}) == step_plan{40, 5, 0.5});
}

TEST_CASE("a growth that is restored does not grow again for what it has seen") {
    const sk::batch_growth_options how{.every_epochs = 1,
                                       .plateau = plateau_options{.patience = 2}};
    sk::batch_growth whole(how), parted(how);
    step_plan one{.global_batch = 2}, two = one;
    for (std::uint64_t step = 0; step < 20; ++step) {
        one = after(whole, one, step, step / 7, 1.0);
        two = after(parted, two, step, step / 7, 1.0);
        CHECK(one == two);
        sk::batch_growth next(how);
        next.restore(parted.state());
        parted = next;
    }
    CHECK(one.global_batch > 16);
    for (const char* text : {"", "x", "1 2", "1 0x1p+0 1 1", "1 0x1p+0 1 1 1 1"})
        CHECK_THROWS_AS(whole.restore(text), sk::error);
}

TEST_CASE("a growth that is given another plateau, or none, begins that one anew") {
    const plateau_options loss{.metric = "val_loss", .patience = 0};
    const plateau_options hits{.metric = "val_hits", .patience = 0, .lower_is_better = false};
    sk::batch_growth by_loss({.every_epochs = 1, .plateau = loss}), plain({.every_epochs = 1});
    step_plan plan{.global_batch = 2};
    plan = after(by_loss, plan, 1, 1, 0.5);
    CHECK(plan.global_batch == 4);
    plain.restore(by_loss.state());
    CHECK(plain.state() == "1");
    sk::batch_growth by_hits({.every_epochs = 1, .plateau = hits});
    for (const auto& saved : {by_loss.state(), plain.state()}) {
        by_hits.restore(saved);
        CHECK(by_hits.state() == "1" + sk::batch_growth({.plateau = hits}).state().substr(1));
    }
}

TEST_CASE("a growth refuses options that make no sense") {
    const auto none = std::numeric_limits<double>::quiet_NaN();
    for (const auto& how : {sk::batch_growth_options{},
                            {.factor = 1.0, .every_epochs = 1},
                            {.factor = none, .every_epochs = 1},
                            {.every_epochs = -1},
                            {.every_epochs = 1, .max = -1},
                            {.plateau = plateau_options{.patience = -1}}})
        CHECK_THROWS_AS(sk::batch_growth(how), sk::error);
    sk::batch_growth rule({.plateau = plateau_options{.metric = "val_f1"}});
    CHECK_THROWS_WITH(after(rule, {}, 1, 0),
                      ContainsSubstring("batch_growth: an evaluation has no 'val_f1'"));
}

} // namespace batch_growth_test

// SPDX-License-Identifier: Apache-2.0
#include <skein/train/loss_spike.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>

namespace sk = skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace loss_spike_test {

namespace {
ruling after(sk::loss_spike& rule, double loss) {
    const std::vector<skein::report::metric_value> row{{"loss", loss}, {"grad_norm", 1.0}};
    return rule.on_agreed({.loss = loss, .grad_norm = 1.0, .metrics = &row});
}
const double none = std::numeric_limits<double>::quiet_NaN();
} // namespace

TEST_CASE("a loss that stands out is left out, and does not count in the running mean") {
    sk::loss_spike rule({.factor = 2, .warmup = 4});
    for (const double loss : {9.0, 1.0, 1.0, 1.0}) // nothing stands out in the warm-up
        CHECK(after(rule, loss).what == verdict::apply);
    CHECK(rule.running_mean() == 3.0);
    CHECK(after(rule, 6.0).what == verdict::apply); // not more than twice
    const double mean = rule.running_mean();
    const auto said = after(rule, 2 * mean + 0.01);
    CHECK(said.what == verdict::leave_out);
    CHECK_THAT(said.why, ContainsSubstring("after 5 steps with a running mean of 3.6"));
    CHECK(rule.running_mean() == mean);
    CHECK(after(rule, mean).what == verdict::apply);
}

TEST_CASE("a spike may be told by standard deviations, of losses that are negative, too") {
    sk::loss_spike rule({.deviations = 3, .warmup = 100});
    for (int i = 0; i < 100; ++i)
        CHECK(after(rule, i % 2 == 0 ? -1.0 : -3.0).what == verdict::apply);
    CHECK(std::abs(rule.running_mean() + 2.0) < 0.05);
    CHECK(after(rule, 0.9).what == verdict::apply);
    CHECK(after(rule, 1.3).what == verdict::leave_out);
}

TEST_CASE("spikes end a run when that is asked for, or when too many come in a row") {
    sk::loss_spike strict({.factor = 2, .warmup = 1, .then = verdict::end});
    CHECK(after(strict, 1.0).what == verdict::apply);
    CHECK(after(strict, 2.5).what == verdict::end);
    sk::loss_spike patient({.factor = 2, .warmup = 1, .most = 2});
    CHECK(after(patient, 1.0).what == verdict::apply);
    for (int round = 0; round < 2; ++round) {
        CHECK(after(patient, 5.0).what == verdict::leave_out);
        CHECK(after(patient, none).what == verdict::leave_out); // not finite: a spike
        if (round == 0) CHECK(after(patient, 1.0).what == verdict::apply);
    }
    const auto said = after(patient, 5.0);
    CHECK(said.what == verdict::end);
    CHECK_THAT(said.why, ContainsSubstring("the 3. spike in a row"));
}

TEST_CASE("what loss_spike has seen goes on after a resume, bit by bit") {
    const sk::loss_spike_options how{.factor = 3, .deviations = 4, .memory = 0.9, .warmup = 3};
    sk::loss_spike whole(how), first(how);
    for (int i = 0; i < 40; ++i) {
        const double loss = 1.0 + 0.1 * std::sin(i) + (i % 7 == 6 ? 10.0 : 0.0);
        sk::loss_spike next(how);
        next.restore(first.state());
        first = next;
        CHECK(after(first, loss).what == after(whole, loss).what);
        CHECK(first.state() == whole.state());
    }
    for (const char* text :
         {"", "x", "1", "1 0x1p+0", "1 0x1p+0 0x1p+0 1", "1 0x1p+0 0x1p+0 1 2 3"})
        CHECK_THROWS_AS(first.restore(text), sk::error);
}

TEST_CASE("loss_spike begins anew with another number than the one it has seen") {
    sk::loss_spike by_loss({.factor = 3, .warmup = 1});
    CHECK(after(by_loss, 1.0).what == verdict::apply);
    CHECK(after(by_loss, 9.0).what == verdict::leave_out);
    sk::loss_spike by_norm({.metric = "grad_norm", .factor = 3, .warmup = 1});
    const auto fresh = by_norm.state();
    by_norm.restore(by_loss.state());
    CHECK(by_norm.state() == fresh);
}

TEST_CASE("loss_spike refuses options that make no sense, and a number that is not there") {
    for (const auto& how : {sk::loss_spike_options{},
                            {.factor = 1.0},
                            {.factor = -2},
                            {.deviations = -1},
                            {.factor = 2, .memory = 1.0},
                            {.factor = 2, .warmup = 0},
                            {.factor = 2, .then = verdict::apply},
                            {.factor = 2, .most = -1}})
        CHECK_THROWS_AS(sk::loss_spike(how), sk::error);
    sk::loss_spike rule({.metric = "perplexity", .factor = 2});
    CHECK_THROWS_WITH(after(rule, 1.0),
                      ContainsSubstring("loss_spike: the row of a step has no 'perplexity'"));
}

} // namespace loss_spike_test

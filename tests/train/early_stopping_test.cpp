// SPDX-License-Identifier: Apache-2.0
#include <skein/train/early_stopping.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

#include <catch2/matchers/catch_matchers_string.hpp>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

action after(sk::early_stopping& watch, double value, std::uint64_t step = 0) {
    const std::vector<metric_value> metrics{{"val_loss", value}};
    return watch.on_eval(eval_info{.step = step, .metrics = &metrics});
}
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct watched_run {
    std::uint64_t steps = 0;
    std::vector<float> weights;
    bool stopped = false;
    std::string reason;
};

/// Trains on a loss that the evaluation finds worse and worse; on rank 0 it may fail in some step.
watched_run train_watched(int world, const run_config& config, std::uint64_t fails_in = 0) {
    watched_run out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        // [callback]
        sk::Trainer<sk::DDP<>, sk::early_stopping> trainer(ctx, config,
                                                           sk::early_stopping({.patience = 3}));
        // [/callback]
        std::uint64_t steps = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            if (m->is_training() && ++steps == fails_in && ctx.is_first())
                throw sk::error(sk::errc::io, "killed");
            const auto value = class_loss(m, b);
            return m->is_training() ? value : -value;
        };
        const auto r =
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{64}, numbers{10});
        if (ctx.is_first()) out = {r.steps, weights(*net), r.stopped, r.stop_reason};
    });
    return out;
}

} // namespace

TEST_CASE("early stopping waits for its patience, and an improvement starts it anew") {
    sk::early_stopping watch({.patience = 2});
    CHECK(after(watch, 3.0) == action::go_on);
    CHECK(after(watch, 3.5) == action::go_on);
    CHECK(after(watch, 2.0) == action::go_on);
    CHECK(after(watch, 2.0) == action::go_on);
    CHECK(after(watch, 2.1) == action::stop);
    CHECK(watch.best() == 2.0);
    sk::early_stopping rising({.patience = 1, .least = 0.5, .lower_is_better = false});
    CHECK(after(rising, 1.0) == action::go_on);
    CHECK(after(rising, 2.0) == action::go_on);
    CHECK(after(rising, 2.5) == action::stop);
}

TEST_CASE("early stopping takes its state along, bit for bit, and refuses a number nobody gives") {
    sk::early_stopping one({.patience = 3}), two({.patience = 3}), fresh;
    (void)after(one, 0.1);
    (void)after(one, 0.2);
    two.restore(one.state());
    CHECK(two.best() == 0.1);
    CHECK(two.waited() == 1);
    CHECK(fresh.state().empty());
    fresh.restore("");
    CHECK(after(fresh, 7.0) == action::go_on);
    CHECK(fresh.best() == 7.0);
    sk::early_stopping lost({.metric = "val_hits"});
    CHECK_THROWS_WITH(after(lost, 1.0), ContainsSubstring("'val_hits'") &&
                                            ContainsSubstring("there are: \"val_loss\""));
}

TEST_CASE("NaN is no improvement and never the best of early stopping") {
    sk::early_stopping watch({.patience = 4, .lower_is_better = false});
    for (const double value : {not_a_number, 0.2, 0.9, not_a_number, 0.3, 0.4}) {
        CHECK(watch.stop_reason().empty());
        CHECK(after(watch, value, 3) == action::go_on);
    }
    CHECK(watch.best() == 0.9);
    CHECK(after(watch, not_a_number) == action::stop);
    CHECK(watch.stop_reason() ==
          "early stopping: val_loss has not improved in 4 evaluations, best 0.9 after step 3");
    sk::early_stopping never({.patience = 2}), later({.patience = 2});
    CHECK(after(never, not_a_number) == action::go_on);
    later.restore(never.state()); // also what was waited before the first number
    CHECK(after(later, not_a_number) == action::stop);
    CHECK_THAT(later.stop_reason(), ContainsSubstring("never a number"));
    CHECK(std::isnan(later.best()));
}

TEST_CASE("an infinite number is never the best of early stopping, so that a finite one may be") {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    for (const bool lower : {true, false}) {
        sk::early_stopping watch({.patience = 9, .lower_is_better = lower});
        for (const double value : {infinite, -infinite})
            CHECK(after(watch, value) == action::go_on);
        CHECK(watch.waited() == 2);
        (void)after(watch, 3.0);
        for (const double value : {infinite, -infinite}) (void)after(watch, value);
        CHECK(watch.best() == 3.0);
        (void)after(watch, lower ? 2.0 : 4.0);
        CHECK(watch.waited() == 0);
    }
}

TEST_CASE("early stopping refuses options that make no sense, and a state that is none") {
    CHECK_THROWS_AS(sk::early_stopping({.patience = 0}), sk::error);
    CHECK_THROWS_AS(sk::early_stopping({.least = not_a_number}), sk::error);
    sk::early_stopping watch;
    for (const char* text : {"x", "1", "1 y", "1 0x1p+0 z", "1 0x1p+0 7 z", "1 0x1p+0 7 8 9"})
        CHECK_THROWS_AS(watch.restore(text), sk::error);
    watch.restore("2 -0x1.8p+1"); // of a version that kept no step
    CHECK(watch.waited() == 2);
    CHECK(watch.best() == -3.0);
}

TEST_CASE(
    "early stopping begins anew with another metric or direction, not with another patience") {
    sk::early_stopping losses({.patience = 3}), patient({.patience = 9});
    (void)after(losses, 0.2, 10);
    (void)after(losses, 0.3, 20);
    patient.restore(losses.state());
    CHECK(patient.waited() == 1);
    CHECK(patient.best() == 0.2);
    sk::early_stopping hits({.metric = "val_hits", .lower_is_better = false});
    hits.restore(losses.state());
    CHECK(hits.waited() == 0);
    CHECK(std::isnan(hits.best()));
    CHECK(hits.best_step() == 0);
}

TEST_CASE("early stopping refuses a run that evaluates nothing") {
    sk::early_stopping watch;
    CHECK_THROWS_WITH(watch.on_start({}),
                      ContainsSubstring("early stopping: no evaluation has a 'val_loss'") &&
                          ContainsSubstring("this run evaluates nothing"));
}

TEST_CASE("early stopping reads its state in a process with another decimal point") {
    sk::early_stopping one, two;
    (void)after(one, 0.1, 7);
    scratch dir; // a locale of the test's own: few machines have one with a comma
    const auto make = fmt::format(
        "localedef --no-archive -i de_DE -f UTF-8 {}/de_DE.UTF-8 >/dev/null 2>&1", dir.path);
    (void)!std::system(make.c_str());
    ::setenv("LOCPATH", dir.path.c_str(), 1);
    const char* const other = std::setlocale(LC_NUMERIC, "de_DE.UTF-8");
    ::unsetenv("LOCPATH");
    const bool comma = other != nullptr && std::string(std::localeconv()->decimal_point) == ",";
    std::string state;
    try {
        state = one.state();
        two.restore(state);
    } catch (const sk::error& why) {
        state = why.what();
    }
    std::setlocale(LC_NUMERIC, "C");
    CHECK_THAT(state, Catch::Matchers::StartsWith("0 0x1.999999999999ap-4 7 "));
    CHECK(two.best() == 0.1);
    CHECK(two.best_step() == 7);
    if (!comma) SKIP("localedef cannot make a locale with a comma here");
}

TEST_CASE("a run whose last step used the patience up goes on until the next evaluation without an "
          "improvement") {
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.checkpoint.enabled = true;
        config.eval_every = 2;
        config.max_steps = 8; // the third evaluation in a row without an improvement is of step 8
        const auto whole = train_watched(world, config);
        CHECK(whole.steps == 8);
        CHECK_FALSE(whole.stopped);
        config.resume = resume_mode::latest;
        config.max_steps = 20;
        const auto more = train_watched(world, config);
        CHECK(more.steps == 11); // the evaluation after step 10, and the step that agreed on it
        CHECK(more.stopped);
        CHECK_THAT(more.reason, ContainsSubstring("val_loss has not improved in 4 evaluations") &&
                                    ContainsSubstring("after step 2"));
    }
}

TEST_CASE("a run that was killed and goes on is stopped early after the same step as an "
          "undisturbed one") {
    for (const int world : {1, 2}) {
        scratch one, two;
        auto config = quiet_config(one.path);
        config.checkpoint.enabled = true;
        config.eval_every = 2;
        config.checkpoint.every = 1;
        config.checkpoint.keep_best.value = best_value::newest; // no evaluations for checkpoints
        const auto whole = train_watched(world, config);
        CHECK(whole.stopped);
        CHECK(whole.steps == 9); // the fourth evaluation, and the step that agreed on it
        for (const std::uint64_t kill : {4u, 7u, 9u}) {
            INFO(world << " ranks, killed in step " << kill);
            config.runs_dir = two.path;
            config.name = "killed-" + std::to_string(kill);
            config.resume = resume_mode::fresh;
            CHECK_THROWS_AS(train_watched(world, config, kill), sk::error);
            config.resume = resume_mode::latest;
            const auto rest = train_watched(world, config);
            CHECK(rest.steps == whole.steps);
            CHECK(rest.weights == whole.weights);
        }
    }
}

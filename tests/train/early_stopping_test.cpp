// SPDX-License-Identifier: Apache-2.0
#include <skein/train/early_stopping.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

#include <vector>

using namespace train_test;

namespace {

action after(sk::early_stopping& watch, double value) {
    const std::vector<metric_value> metrics{{"val_loss", value}};
    return watch.on_eval(eval_info{.metrics = &metrics});
}

struct watched_run {
    std::uint64_t steps = 0;
    std::vector<float> weights;
    bool stopped = false;
};

/// Trains on a loss that the evaluation finds worse and worse; on rank 0 it may fail in some step.
watched_run train_watched(int world, const run_config& config, std::uint64_t fails_in = 0) {
    watched_run out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, sk::early_stopping> trainer(ctx, config,
                                                           sk::early_stopping({.patience = 3}));
        std::uint64_t steps = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            if (m->is_training() && ++steps == fails_in && ctx.is_first())
                throw sk::error(sk::errc::io, "killed");
            const auto value = class_loss(m, b);
            return m->is_training() ? value : -value;
        };
        const auto r =
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{64}, numbers{10});
        if (ctx.is_first()) out = {r.steps, weights(*net), r.stopped};
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
    CHECK_THROWS_AS(after(lost, 1.0), sk::error);
}

TEST_CASE("a run that was killed and goes on is stopped early after the same step as an "
          "undisturbed one") {
    for (const int world : {1, 2}) {
        scratch one, two;
        auto config = quiet_config(one.path);
        config.checkpoints = true;
        config.eval_every = 2;
        config.checkpoint_every = 1;
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

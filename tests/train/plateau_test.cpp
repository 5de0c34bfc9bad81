// SPDX-License-Identifier: Apache-2.0
#include <skein/train/plateau.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace plateau_test {

TEST_CASE("a plateau is one number more without an improvement than the patience, and says why") {
    plateau watch({.metric = "val_loss", .patience = 1, .threshold = 0.1, .relative = false});
    CHECK_FALSE(watch.take(1.0));
    CHECK_FALSE(watch.take(0.95)); // too little
    CHECK(watch.take(0.96));
    CHECK(watch.why() == "val_loss is 0.96, 2 in a row have not improved on 1");
    CHECK_FALSE(watch.take(0.96)); // counting begins anew
    CHECK_FALSE(watch.take(0.8));
    CHECK(watch.best() == 0.8);
}

TEST_CASE("a plateau is refused in the name of its rule") {
    CHECK_THROWS_WITH(plateau({.patience = -1}, "my_rule"),
                      ContainsSubstring("my_rule: a patience of -1"));
    plateau watch({.metric = "loss", .at = watched::steps}, "my_rule");
    const std::vector<skein::report::metric_value> row{{"lr", 1.0}};
    CHECK_THROWS_WITH(watch.take(step_info{.metrics = &row}),
                      ContainsSubstring("my_rule: the row of a step has no 'loss'"));
}

TEST_CASE(
    "a plateau looks at evaluations of its set alone, and wants one that can have its number") {
    plateau watch({.metric = "test_loss", .patience = 0});
    const std::vector<skein::report::metric_value> one{{"val_loss", 1.0}}, two{{"test_loss", 1.0}};
    for (int i = 0; i < 3; ++i) {
        CHECK_FALSE(watch.take(eval_info{.set = "val", .metrics = &one}));
        CHECK_FALSE(watch.take(step_info{.metrics = &one}));
    }
    CHECK_FALSE(watch.take(eval_info{.set = "test", .metrics = &two}));
    CHECK(watch.take(eval_info{.set = "test", .metrics = &two}));
    watch.require({.evaluations = {"val", "test"}});
    CHECK_THROWS_WITH(watch.require({.evaluations = {"val", "testing"}}),
                      ContainsSubstring("plateau: no evaluation has a 'test_loss'"));
    // A run without evaluations would never hear of it.
    CHECK_THROWS_WITH(watch.require({}),
                      ContainsSubstring("plateau: no evaluation has a 'test_loss'") &&
                          ContainsSubstring("this run evaluates nothing"));
    const plateau steps({.metric = "loss", .at = watched::steps});
    CHECK_NOTHROW(steps.require({}));
    // A metric of training is in the rows where it is due, if the run has it.
    plateau training({.metric = "train_f1", .patience = 0, .at = watched::steps});
    CHECK_NOTHROW(training.require({.training = {"train_f1"}}));
    CHECK_THROWS_WITH(training.require({.training = {"train_f2"}}),
                      ContainsSubstring("plateau: no row of a step has a 'train_f1'") &&
                          ContainsSubstring("train_f2"));
    CHECK_THROWS_WITH(training.require({}), ContainsSubstring("trainer.measure()"));
    const std::vector<skein::report::metric_value> due{{"loss", 1.0}, {"train_f1", 2.0}};
    CHECK_FALSE(training.take(step_info{.metrics = &due}));
    for (int i = 0; i < 3; ++i) CHECK_FALSE(training.take(step_info{.metrics = &one}));
    CHECK(training.take(step_info{.metrics = &due}));
}

TEST_CASE("the state of a plateau counts for the same metric in the same direction only") {
    const plateau_options how{.metric = "val_loss", .patience = 9};
    plateau seen(how);
    for (const double loss : {0.2, 0.3}) CHECK_FALSE(seen.take(loss));
    const auto restored = [&](const plateau_options& other) {
        plateau next(other);
        const auto saved = seen.state();
        train::detail::state_words words(saved);
        CHECK(next.restore(words));
        return next;
    };
    auto patient = how, accuracy = how, rising = how, steps = how;
    patient.patience = 1;
    CHECK(restored(patient).state() == seen.state());
    accuracy.metric = "val_accuracy";
    rising.lower_is_better = false;
    steps.at = watched::steps;
    for (const auto& other : {accuracy, rising, steps})
        CHECK(restored(other).state() == plateau(other).state());
}

} // namespace plateau_test

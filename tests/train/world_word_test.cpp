// SPDX-License-Identifier: Apache-2.0
// What the ranks of a new world make of each other's words.
#include <skein/train/detail/world_word.hpp>

#include <skein/core/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein::train::detail;
using Catch::Matchers::ContainsSubstring;

namespace {
world_word word(bool has_state, std::uint64_t applied, step_end end = step_end::nothing) {
    return {.has_state = has_state,
            .applied = applied,
            .end = end,
            .model = "m",
            .settings = {{"seed", "1"}}};
}
} // namespace

TEST_CASE("world words: nobody has state, so the run begins with the first rank's values") {
    const auto plan = plan_world({word(false, 0), word(false, 0), word(false, 0)});
    CHECK(plan.begins);
    CHECK(plan.first == 0);
    CHECK(plan.gives == std::vector<bool>{true, false, false});
    CHECK_FALSE(plan.refused);
}

TEST_CASE("world words: the furthest applied step wins, then the furthest with its end") {
    const auto ahead =
        plan_world({word(true, 6), word(true, 7, step_end::decide), word(false, 0), word(true, 7)});
    CHECK_FALSE(ahead.begins);
    CHECK(ahead.first == 3);
    CHECK(ahead.gives == std::vector<bool>{false, false, false, true});
    const auto alike = plan_world(
        {word(true, 7, step_end::report), word(false, 9), word(true, 7, step_end::report)});
    CHECK(alike.first == 0);
    CHECK(alike.gives == std::vector<bool>{true, false, true});
}

TEST_CASE("world words: who joins with other settings or another model is refused by name") {
    auto other = word(false, 0);
    other.settings[0].value = "2";
    auto plan = plan_world({word(true, 3), other});
    REQUIRE(plan.refused == std::size_t{1});
    CHECK_THAT(plan.why, ContainsSubstring("seed"));
    auto model = word(false, 0);
    model.model = "n";
    plan = plan_world({word(true, 3), word(false, 0), model});
    REQUIRE(plan.refused == std::size_t{2});
    CHECK_THAT(plan.why, ContainsSubstring("another model"));
    auto changed = word(true, 3);
    changed.model = "n";
    CHECK_THROWS_AS(plan_world({word(true, 3), changed}), skein::error);
}

TEST_CASE("world words: half a state is no state") {
    auto torn = word(false, 0);
    torn.is_torn = true;
    const auto plan = plan_world({torn, word(false, 0)});
    CHECK(plan.begins);
    CHECK(plan.first == 1);
    CHECK_FALSE(plan.refused); // it takes the first values of the other one
    const auto copied = plan_world({word(true, 4), torn});
    CHECK_FALSE(copied.refused);
    CHECK(copied.gives == std::vector<bool>{true, false});
    CHECK_THROWS_AS(plan_world({torn, torn}), state_lost);
    auto told = word(true, 7, step_end::report);
    told.told = 2; // its rules have decided by an evaluation that the other one has not ended
    const auto ahead = plan_world({word(true, 7, step_end::report), told});
    CHECK(ahead.gives == std::vector<bool>{false, true});
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/schedule.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <string>
#include <vector>

using namespace skein;
using namespace skein::train;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

TEST_CASE("the warm-up rises in equal steps and ends at the peak") {
    for (const schedule& s :
         {schedule(constant_rate{8.0, 4}), schedule(warmup_cosine{8.0, 0.0, 4, 100}),
          schedule(warmup_linear{8.0, 0.0, 4, 100}), schedule(step_decay{8.0, 0.5, 10, 4}),
          schedule(warmup_stable_decay{8.0, 0.0, 4, 20, 100})}) {
        CHECK(learning_rate(s, 0) == 2.0);
        CHECK(learning_rate(s, 1) == 4.0);
        CHECK(learning_rate(s, 2) == 6.0);
        CHECK(learning_rate(s, 3) == 8.0);
        CHECK(learning_rate(s, 4) == 8.0);
    }
}

TEST_CASE("the cosine passes the places known in closed form and stays at the floor") {
    const warmup_cosine s{.peak = 1.0, .floor = 0.1, .warmup = 10, .total = 70};
    CHECK_THAT(s(10), WithinAbs(1.0, 1e-15));
    CHECK_THAT(s(30), WithinAbs(0.1 + 0.9 * 0.75, 1e-15)); // cos(pi/3) = 1/2
    CHECK_THAT(s(40), WithinAbs(0.55, 1e-15));             // half-way
    CHECK_THAT(s(50), WithinAbs(0.1 + 0.9 * 0.25, 1e-15)); // cos(2pi/3) = -1/2
    CHECK_THAT(s(25), WithinAbs(0.1 + 0.45 * (1.0 + 0.70710678118654752), 1e-15)); // cos(pi/4)
    CHECK(s(70) == 0.1);
    CHECK(s(1'000'000) == 0.1);
}

TEST_CASE("the line falls evenly and stays at the floor") {
    const warmup_linear s{.peak = 1.0, .floor = 0.2, .warmup = 0, .total = 8};
    CHECK(s(0) == 1.0);
    CHECK_THAT(s(2), WithinAbs(0.8, 1e-15));
    CHECK_THAT(s(4), WithinAbs(0.6, 1e-15));
    CHECK_THAT(s(8), WithinAbs(0.2, 1e-15));
    CHECK_THAT(s(9), WithinAbs(0.2, 1e-15));
}

TEST_CASE("the steps multiply by gamma") {
    const step_decay s{.peak = 1.0, .gamma = 0.5, .every = 3, .warmup = 2};
    const double wanted[] = {0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25};
    for (std::uint64_t step = 0; step < std::size(wanted); ++step)
        CHECK_THAT(s(step), WithinRel(wanted[step], 1e-12));
}

TEST_CASE("no rate leaves [0, peak], whatever warm-up and total are") {
    for (std::uint64_t warmup : {0, 1, 5, 20})
        for (std::uint64_t total : {0, 1, 5, 20}) {
            for (const char* name : {"constant", "cosine", "linear", "step", "wsd"}) {
                auto s = make_schedule(
                    name, {.peak = 0.3, .floor = 0.03, .warmup = warmup, .total = total});
                REQUIRE(s);
                for (std::uint64_t step = 0; step < 40; ++step) {
                    const double lr = learning_rate(*s, step);
                    INFO(name << " warmup " << warmup << " total " << total << " step " << step);
                    REQUIRE(lr > 0.0);
                    REQUIRE(lr <= 0.3 * (1.0 + 1e-15)); // one rounding
                }
            }
        }
}

TEST_CASE(
    "a schedule from the command line: unknown names and senseless numbers are usage errors") {
    CHECK(make_schedule("triangle", {}).error().code() == errc::usage);
    CHECK(make_schedule("cosine", {.peak = 0.0}).error().code() == errc::usage);
    CHECK(make_schedule("cosine", {.peak = 1.0, .floor = 2.0}).error().code() == errc::usage);
    CHECK(std::string(make_schedule("triangle", {}).error().what())
              .find("constant, cosine, linear, step, wsd") != std::string::npos);
}

TEST_CASE("WSD stays at the peak, then comes down in its last steps along a line or a root") {
    const warmup_stable_decay line{.peak = 1.0, .floor = 0.2, .warmup = 2, .decay = 4, .total = 20};
    auto root = line;
    root.form = decay_form::one_minus_sqrt;
    for (const auto& s : {line, root}) {
        CHECK(s(0) == 0.5);
        for (std::uint64_t step = 1; step <= 16; ++step) CHECK(s(step) == 1.0);
        CHECK_THAT(s(20), WithinAbs(0.2, 1e-15));
        CHECK_THAT(s(1000), WithinAbs(0.2, 1e-15));
    }
    CHECK_THAT(line(17), WithinAbs(0.8, 1e-15));
    CHECK_THAT(line(18), WithinAbs(0.6, 1e-15));
    CHECK_THAT(root(17), WithinAbs(0.6, 1e-15)); // 1 - 0.8 * sqrt(1/4)
    CHECK_THAT(root(18), WithinAbs(1.0 - 0.8 * 0.70710678118654752, 1e-15));

    const warmup_stable_decay all{.peak = 1.0, .warmup = 5, .decay = 100, .total = 20};
    CHECK(all(5) == 1.0); // the decay begins behind the warm-up
    CHECK_THAT(all(11), WithinAbs(0.6, 1e-15));
}

TEST_CASE("wsd by name: the decay is a fifth of the run, or what was asked for, if it fits") {
    const auto s = make_schedule("wsd", {.peak = 1.0, .warmup = 10, .total = 110}).value();
    CHECK(learning_rate(s, 90) == 1.0);
    CHECK_THAT(learning_rate(s, 100), WithinAbs(0.5, 1e-15));
    const auto why = make_schedule("wsd", {.warmup = 10, .total = 30, .decay = 21}).error();
    CHECK(why.code() == errc::usage);
    CHECK(std::string(why.what()).find("21 steps does not fit in the 20") != std::string::npos);
}

TEST_CASE("any callable is a schedule, and one that gives no rate is named with its step") {
    const double half = 0.5;
    const schedule s = [half](std::uint64_t step) { return half / static_cast<double>(step + 1); };
    CHECK(learning_rate(s, 0) == 0.5);
    CHECK(learning_rate(s, 4) == 0.1);
    const schedule bad = [](std::uint64_t step) { return step < 3 ? 1.0 : -1.0; };
    CHECK(learning_rate(bad, 2) == 1.0);
    try {
        (void)learning_rate(bad, 3);
        FAIL("a negative rate was taken");
    } catch (const error& why) {
        CHECK(why.code() == errc::usage);
        CHECK(std::string(why.what()).find("the rate -1 at step 3") != std::string::npos);
    }
    static_assert(!learning_rate_schedule<int>);
    static_assert(learning_rate_schedule<warmup_cosine>);
}

TEST_CASE("a schedule says its settings; one without is told by the rates it gives in the run") {
    const auto said = schedule(constant_rate{.peak = 0.1, .warmup = 3}).describe(100);
    CHECK(said.name == "constant_rate");
    CHECK(said == schedule(constant_rate{.peak = 0.1, .warmup = 3}).describe(7));
    CHECK(said != schedule(constant_rate{.peak = 0.2, .warmup = 3}).describe(100));

    const auto rates = [](double last) {
        return [table = std::vector<double>{1.0, 0.5, last}](std::uint64_t step) {
            return table.at(step); // asked for no step behind the run
        };
    };
    const auto one = schedule(rates(0.25)).describe(3), other = schedule(rates(0.125)).describe(3);
    CHECK(one.name == "callable");
    CHECK(one.settings.size() == 3);
    CHECK(one != other);
    CHECK(schedule(rates(0.25)).describe(0).settings.size() == 1);
}

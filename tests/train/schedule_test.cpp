// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/schedule.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

using namespace skein;
using namespace skein::train;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

TEST_CASE("the warm-up rises in equal steps and ends at the peak") {
    for (const schedule& s :
         {schedule(constant_rate{8.0, 4}), schedule(warmup_cosine{8.0, 0.0, 4, 100}),
          schedule(warmup_linear{8.0, 0.0, 4, 100}), schedule(step_decay{8.0, 0.5, 10, 4})}) {
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
            for (const char* name : {"constant", "cosine", "linear", "step"}) {
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
              .find("constant, cosine, linear, step") != std::string::npos);
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/goodput/step_time.hpp>

#include <skein/core/error.hpp>

#include <tests/goodput/adaptdl_numbers.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace step_time_test {

using namespace skein::goodput;
using Catch::Matchers::WithinRel;

namespace {

step_time_model model_from(const double (&p)[7]) {
    return {p[0], p[1], p[2], p[3], p[4], p[5], p[6]};
}

step_time timed(const step_time_model& model, int nodes, int ranks, std::int64_t micro) {
    const step_shape shape{.nodes = nodes, .ranks = ranks, .micro_batch = micro};
    return {shape, model.micro_seconds(micro), model.last_seconds(shape)};
}

/// Models as machines are: a sample takes 10 us to 10 ms, an exchange 0.1 ms to 1 s.
struct drawn_models {
    std::mt19937_64 bits;
    double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    double between(double low, double high) { return low * std::pow(high / low, unit()); }
    /// A further rank costs less than the first two did, and gamma is at most 3: of others the terms
    /// against them in the error are larger than what a slightly wrong time costs there.
    step_time_model next() {
        step_time_model made{.alpha_c = between(1e-3, 1e-1),
                             .beta_c = between(1e-5, 1e-2),
                             .alpha_n = between(1e-3, 1.0),
                             .alpha_r = between(1e-4, 1e-1),
                             .gamma = 1 + 2 * unit()};
        made.beta_n = made.alpha_n * between(1e-3, 0.3);
        made.beta_r = made.alpha_r * between(1e-3, 0.3);
        return made;
    }
};

} // namespace

TEST_CASE("the error of a model of step times is the objective of adaptdl's fit") {
    for (const auto& each : goodput_test::adaptdl_objectives) {
        std::vector<step_time> seen;
        for (const auto& row : each.rows)
            seen.push_back({{.nodes = row.nodes, .ranks = row.ranks, .micro_batch = row.micro},
                            row.micro_seconds,
                            row.last_seconds});
        CHECK_THAT(fit_error(model_from(each.parameters), seen), WithinRel(each.value, 1e-9));
    }
}

TEST_CASE("a fit of step times is as good as the model that made them, and foretells the others") {
    drawn_models models{std::mt19937_64(11)};
    int worse = 0, seen_off = 0, foretold_off = 0;
    for (int i = 0; i < 1000; ++i) {
        const auto planted = models.next();
        std::vector<step_time> seen;
        for (const auto& [nodes, ranks] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 8}})
            for (const std::int64_t micro : {16, 64, 256})
                seen.push_back(timed(planted, nodes, ranks, micro));
        const auto found = fit(seen);
        worse += fit_error(found, seen) > fit_error(planted, seen) + 1e-7;
        const auto off = [&](int nodes, int ranks, std::int64_t micro) {
            const step_shape shape{.nodes = nodes, .ranks = ranks, .micro_batch = micro};
            return std::abs(found.step_seconds(shape) / planted.step_seconds(shape) - 1);
        };
        bool is_off = false;
        for (const auto& each : seen)
            is_off =
                is_off || off(each.shape.nodes, each.shape.ranks, each.shape.micro_batch) > 0.02;
        seen_off += is_off;
        foretold_off += off(1, 3, 32) > 0.05 || off(1, 8, 128) > 0.05 || off(2, 4, 100) > 0.05 ||
                        off(4, 16, 512) > 0.05;
    }
    CHECK(worse == 0);
    CHECK(seen_off == 0);
    CHECK(foretold_off == 0);
}

TEST_CASE("what was never seen of step times is taken to be good") {
    const step_time_model planted{
        .alpha_c = 0.02, .beta_c = 0.001, .alpha_r = 0.05, .beta_r = 0.002};
    SECTION("one size of a micro-batch: half of its time is fixed") {
        const std::vector<step_time> seen{timed(planted, 1, 1, 32)};
        const auto found = fit(seen);
        CHECK_THAT(found.alpha_c, WithinRel(0.026, 1e-6));
        CHECK_THAT(found.micro_seconds(32), WithinRel(0.052, 0.01));
        CHECK(found.sync_seconds(1, 8) < 1e-6); // nobody saw an exchange
    }
    SECTION("one node: between nodes it takes a tenth longer") {
        const std::vector<step_time> seen{timed(planted, 1, 2, 16), timed(planted, 1, 4, 64)};
        const auto found = fit(seen);
        CHECK(found.alpha_n == found.alpha_r * 1.1);
        CHECK(found.beta_n == found.beta_r * 1.1);
    }
    SECTION("two ranks: further ones cost nothing") {
        const std::vector<step_time> seen{timed(planted, 1, 2, 16), timed(planted, 1, 2, 64)};
        CHECK(fit(seen).beta_r < 1e-7);
    }
}

TEST_CASE("times of steps are averaged by shape, and those of a clock that jumped are left out") {
    step_times times;
    CHECK(times.empty());
    const step_shape one{.nodes = 1, .ranks = 2, .micro_batch = 8};
    CHECK(times.add(one, 1.0, 3.0));
    CHECK(times.add({.nodes = 1, .ranks = 2, .micro_batch = 8, .accumulation = 3}, 3.0, 5.0));
    CHECK(times.add({.nodes = 1, .ranks = 1, .micro_batch = 8}, 0.5, 0.5));
    for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        CHECK_FALSE(times.add(one, bad, 1.0));
        CHECK_FALSE(times.add(one, 1.0, bad));
    }
    const auto means = times.means();
    REQUIRE(means.size() == 2);
    CHECK(means[0].shape.ranks == 1);
    CHECK(means[1].shape == one);
    CHECK(means[1].micro_seconds == 2.0);
    CHECK(means[1].last_seconds == 4.0);
}

TEST_CASE("a fit refuses times that cannot be") {
    CHECK_THROWS_AS(fit({}), skein::error);
    const step_time good{{.nodes = 1, .ranks = 2, .micro_batch = 8}, 0.1, 0.2};
    for (auto bad :
         {step_time{{.nodes = 0}, 0.1, 0.1}, step_time{{.nodes = 2, .ranks = 1}, 0.1, 0.1},
          step_time{{.micro_batch = 0}, 0.1, 0.1}, step_time{{}, 0.0, 0.1},
          step_time{{}, 0.1, std::nan("")}}) {
        CHECK_THROWS_AS(fit(std::vector{good, bad}), skein::error);
        CHECK_THROWS_AS(fit_error({}, std::vector{good, bad}), skein::error);
    }
}

TEST_CASE("a fit of one time that came for ever, of noise, and of impossible speeds ends") {
    std::mt19937_64 bits(3);
    const auto noisy = [&] { return 0.9 + 0.2 * static_cast<double>(bits() >> 11) * 0x1p-53; };
    const step_time_model planted{
        .alpha_c = 0.02, .beta_c = 0.001, .alpha_r = 0.05, .beta_r = 0.002};
    std::vector<step_time> seen;
    for (const int ranks : {1, 2, 4})
        for (const std::int64_t micro : {8, 32, 128}) {
            auto each = timed(planted, 1, ranks, micro);
            each.micro_seconds *= noisy();
            each.last_seconds *= noisy();
            seen.push_back(each);
        }
    const auto found = fit(seen);
    CHECK(fit_error(found, seen) <= fit_error(planted, seen));
    for (auto& each : seen)
        each.last_seconds = each.micro_seconds / 100; // faster than a part of it
    CHECK(std::isfinite(fit_error(fit(seen), seen)));
    for (auto& each : seen) each.micro_seconds = each.last_seconds = 1e-9;
    CHECK(std::isfinite(fit_error(fit(seen), seen)));
    for (auto& each : seen) each.micro_seconds = each.last_seconds = 1e6;
    CHECK(std::isfinite(fit_error(fit(seen), seen)));
}

TEST_CASE("times of many shapes: the newest one is always kept, and one of the fewest steps goes") {
    step_times times;
    for (std::int64_t m = 1; m <= 200; ++m) {
        const step_shape shape{.ranks = 2, .micro_batch = m};
        for (int i = 0; i < 3; ++i) REQUIRE(times.add(shape, 0.01, 0.02));
        CHECK(times.last_seconds(shape) > 0);
        CHECK(times.state().size() <= step_times::most_shapes);
    }
}

} // namespace step_time_test

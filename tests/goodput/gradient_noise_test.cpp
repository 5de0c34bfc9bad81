// SPDX-License-Identifier: Apache-2.0
#include <skein/goodput/gradient_noise.hpp>

#include <skein/core/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace gradient_noise_test {

using namespace skein::goodput;
using Catch::Matchers::WithinRel;

namespace {

double squared(const std::vector<double>& x) {
    double sum = 0.0;
    for (const double each : x) sum += each * each;
    return sum;
}

/// Gradients of slices of a batch: a true one, and noise whose variance is that of the first batch's
/// by samples. By Box and Muller, as a standard library draws its own normal numbers.
struct drawn_steps {
    std::vector<double> truth{3.0, -1.0, 0.5, 2.0};
    double deviation = 1.5; ///< of one element, for a gradient of the first batch
    double first_batch = 8;
    std::mt19937_64 bits{7};

    double normal() {
        const auto unit = [&] { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; };
        return std::sqrt(-2 * std::log(unit())) * std::cos(2 * std::numbers::pi * unit());
    }
    std::vector<double> gradient(double samples) {
        auto out = truth;
        for (double& x : out) x += deviation * std::sqrt(first_batch / samples) * normal();
        return out;
    }
    gradient_squares step(const std::vector<double>& slices) {
        double batch = 0.0;
        for (const double m : slices) batch += m;
        gradient_squares out{.count = static_cast<int>(slices.size())};
        std::vector<double> mean(truth.size(), 0.0);
        for (const double m : slices) {
            const auto one = gradient(m);
            out.local += m / batch * squared(one);
            for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += m / batch * one[i];
        }
        out.total = squared(mean);
        return out;
    }
};

} // namespace

TEST_CASE("moments of gradients by hand") {
    // (1, 0) and (0, 1): their squares are 1, that of their mean is a half.
    const auto two = moments_of({.count = 2, .local = 1.0, .total = 0.5}, 1.0).value();
    CHECK(two.sqr == 0.0);
    CHECK(two.var == 0.5);
    const auto scaled = moments_of({.count = 2, .local = 1.0, .total = 0.5}, 4.0).value();
    CHECK(scaled.var == 2.0);
    CHECK_FALSE(moments_of({.count = 1, .local = 1.0, .total = 1.0}, 1.0));
    CHECK_FALSE(moments_of({.count = 2, .local = std::nan(""), .total = 1.0}, 1.0));
    const auto pair = differenced(4.0, 2.0, 1.5);
    CHECK(pair.count == 2);
    CHECK(pair.local == 3.0);
    CHECK(pair.total == 1.5);
}

TEST_CASE("moments of gradients have no bias, for any number of slices, equal or not") {
    const std::vector<std::vector<double>> cuts = {
        {4, 4},           {8, 8}, {8, 8, 8, 8}, {11, 11, 10}, {1, 1, 1, 1, 1, 1, 1, 1},
        {64, 64, 64, 64}, {3, 1}, {128, 64, 64}};
    for (const auto& slices : cuts) {
        drawn_steps steps;
        double batch = 0.0, sqr = 0.0, var = 0.0;
        for (const double m : slices) batch += m;
        const int times = 200'000;
        for (int i = 0; i < times; ++i) {
            const auto now = moments_of(steps.step(slices), batch / steps.first_batch).value();
            sqr += now.sqr / times;
            var += now.var / times;
        }
        INFO("slices: " << slices.size() << ", batch " << batch);
        CHECK_THAT(sqr, WithinRel(squared(steps.truth), 0.01));
        CHECK_THAT(var, WithinRel(4 * steps.deviation * steps.deviation, 0.01));
    }
}

TEST_CASE("a gain is between 1 and the scale, and what cannot be seen gains nothing") {
    const gradient_moments now{.sqr = 1.0, .var = 3.0};
    CHECK(gain_of(now, 1.0) == 1.0);
    CHECK(gain_of(now, 3.0) == 2.0);
    CHECK_THAT(gain_of(now, 1e12), WithinRel(4.0, 1e-6));
    CHECK(gain_of({.sqr = 0.0, .var = 2.0}, 8.0) == 8.0); // noise alone
    CHECK(gain_of({.sqr = 0.0, .var = 0.0}, 8.0) == 1.0);
    CHECK(gain_of({.sqr = -1.0, .var = 0.5}, 8.0) == 1.0);
}

TEST_CASE("averages are debiased, count by scale, and go on from what was kept") {
    gradient_noise noise(2);
    CHECK(noise.raw(0).sqr == 1.0);
    CHECK(noise.raw(1).var == 0.0);
    CHECK(noise.gain(4.0) >= 1.0);
    const std::vector<gradient_squares> first{{4, 2.0, 0.8}, {4, 1.0, 1.0}};
    CHECK(noise.take(first, 2.0));
    const auto alone = moments_of(first[0], 2.0).value();
    CHECK_THAT(noise.raw(0).sqr, WithinRel(alone.sqr, 1e-12)); // the first is the average
    CHECK(noise.of(1).var == gradient_noise::least_variance);
    const std::vector<gradient_squares> second{{4, 3.0, 1.0}, {4, 2.0, 1.0}};
    CHECK(noise.take(second, 8.0));
    // sum of (1 - k) x k' over sum of (1 - k) k', with k the smoothing to the power of the scale
    const double k2 = std::pow(0.999, 2.0), k8 = std::pow(0.999, 8.0);
    const auto then = moments_of(second[0], 8.0).value();
    const double wanted = ((1 - k2) * k8 * alone.sqr + (1 - k8) * then.sqr) / (1 - k2 * k8);
    CHECK_THAT(noise.raw(0).sqr, WithinRel(wanted, 1e-12));
    CHECK_THAT(noise.all().sqr, WithinRel(noise.of(0).sqr + noise.of(1).sqr, 1e-15));

    gradient_noise again(2);
    again.restore(noise.state());
    CHECK(again.take(first, 4.0));
    CHECK(noise.take(first, 4.0));
    CHECK(again.raw(0).sqr == noise.raw(0).sqr);
    CHECK(again.raw(1).var == noise.raw(1).var);
    CHECK(again.steps() == 3);
}

TEST_CASE(
    "a step that is not finite is left out, and differences end with the first better number") {
    gradient_noise noise;
    CHECK(noise.take(differenced(4.0, 2.0, 1.5), 2.0, true));
    CHECK(noise.is_differenced());
    CHECK_FALSE(noise.take({.count = 2, .local = std::numeric_limits<double>::infinity()}, 1.0));
    CHECK_FALSE(noise.take({.count = 1, .local = 1.0, .total = 1.0}, 1.0));
    CHECK(noise.steps() == 1);
    const gradient_squares better{.count = 2, .local = 1.0, .total = 0.75};
    CHECK(noise.take(better, 1.0));
    CHECK_FALSE(noise.is_differenced());
    CHECK(noise.steps() == 1);
    CHECK_THAT(noise.raw(0).sqr, WithinRel(0.5, 1e-12));
    CHECK_FALSE(noise.take(differenced(4.0, 2.0, 1.5), 2.0, true));
    CHECK_THAT(noise.noise_scale(), WithinRel(0.5, 1e-12));
}

TEST_CASE("what cannot be averages of gradients is refused") {
    CHECK_THROWS_AS(gradient_noise(0), skein::error);
    CHECK_THROWS_AS(gradient_noise(1, 1.0), skein::error);
    CHECK_THROWS_AS(gradient_noise(1, std::nan("")), skein::error);
    gradient_noise noise;
    CHECK_THROWS_AS(noise.take(std::vector<gradient_squares>(2), 1.0), skein::error);
    CHECK_THROWS_AS(noise.take({2, 1.0, 0.5}, 0.0), skein::error);
    using memory = gradient_noise::memory;
    const auto refuses = [&](const memory& saved) {
        try {
            gradient_noise fresh;
            fresh.restore(saved);
        } catch (const skein::error& why) {
            return why.code() == skein::errc::malformed;
        }
        return false;
    };
    CHECK(refuses({.sqr = {1, 2}, .var = {1, 2}, .weight = 0.5, .steps = 1}));
    CHECK(refuses({.sqr = {std::nan("")}, .var = {1}, .weight = 0.5, .steps = 1}));
    CHECK(refuses({.sqr = {1}, .var = {1}, .weight = 0.0, .steps = 1}));
    CHECK(refuses({.sqr = {1}, .var = {1}, .weight = 1.5, .steps = 1}));
    CHECK_FALSE(refuses({.sqr = {1}, .var = {1}, .weight = 0.5, .steps = 1}));
}

} // namespace gradient_noise_test

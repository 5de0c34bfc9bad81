// SPDX-License-Identifier: Apache-2.0
// Perplexity against its definition. Many more: tests/interop.

#include <skein/core/error.hpp>
#include <skein/metrics/detail/fast_exp.hpp>
#include <skein/metrics/perplexity.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace perplexity_test {

using namespace skein;
using namespace skein::metrics;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

double of(perplexity made, const samples& shown) {
    made.update(shown);
    return made.compute();
}

TEST_CASE("perplexity: who knows nothing hesitates between all, who knows between one") {
    std::vector<float> logits(200, 5);
    const std::int64_t tokens[] = {3, 99};
    CHECK(of({}, {.preds = {logits.data(), {1, 2, 100}}, .target = {tokens, {1, 2}}}) ==
          Approx(100));
    logits[3] = logits[199] = 80;
    CHECK(of({}, {.preds = {logits.data(), {1, 2, 100}}, .target = {tokens, {1, 2}}}) == Approx(1));
}

TEST_CASE("perplexity: exponentials in vectors are those of the library") {
    for (int i = 0; i <= 8690; ++i) {
        const float x = static_cast<float>(i) * -0.01f;
        CHECK(metrics::detail::fast_exp(x) ==
              Approx(std::exp(static_cast<double>(x))).epsilon(2.5e-7));
    }
    CHECK(metrics::detail::fast_exp(0.0f) == 1.0f);
    CHECK(metrics::detail::fast_exp(-200.0f) == 0.0f);
    CHECK(metrics::detail::fast_exp(-std::numeric_limits<float>::infinity()) == 0.0f);
    for (const std::size_t n : {1, 15, 16, 17, 300, 1000}) {
        std::vector<float> scores(n);
        double wanted = 0;
        for (std::size_t i = 0; i < n; ++i) scores[i] = static_cast<float>(i % 37) * -.3f;
        for (const float x : scores) wanted += std::exp(static_cast<double>(x));
        CHECK(metrics::detail::sum_of_exp(scores.data(), n, 1, 0.0f) ==
              Approx(wanted).epsilon(1e-6));
        CHECK(metrics::detail::largest_of(scores.data(), n, 1) == 0.0f);
    }
}

TEST_CASE("perplexity: what does not count, and what is refused") {
    const double logits[] = {std::log(3.0), 0, 0, 0};
    const std::int64_t tokens[] = {0, -100}, beyond[] = {0, 2};
    const samples shown{.preds = {logits, {2, 2}}, .target = {tokens, {2}}};
    CHECK(of({.ignore_index = -100}, shown) == Approx(4.0 / 3));
    CHECK(std::isnan(perplexity{}.compute()));
    CHECK_THROWS_MATCHES(of({}, shown), error,
                         MessageMatches(ContainsSubstring("target[1] is -100")));
    CHECK_THROWS_MATCHES(of({}, {.preds = {logits, {2, 2}}, .target = {beyond, {2}}}), error,
                         MessageMatches(ContainsSubstring("target[1] is 2, labels are 0 to 1")));
    const float odd[] = {1, std::numeric_limits<float>::quiet_NaN()};
    CHECK_THROWS_MATCHES(of({}, {.preds = {odd, {1, 2}}, .target = {tokens, {1}}}), error,
                         MessageMatches(ContainsSubstring("preds[0, 1] is nan")));
    const float overflowed[] = {1, std::numeric_limits<float>::infinity()};
    CHECK_THROWS_MATCHES(of({}, {.preds = {overflowed, {1, 2}}, .target = {tokens, {1}}}), error,
                         MessageMatches(ContainsSubstring("preds[0, 1] is inf")));
    const float weight[] = {3, 0};
    CHECK(of({}, {.preds = {logits, {2, 2}}, .target = {tokens, {2}}, .weight = {weight, {2}}}) ==
          Approx(4.0 / 3));
    for (const samples& bad : {samples{}, samples{.preds = {logits, {4}}, .target = {tokens, {2}}},
                               samples{.preds = {logits, {1, 2, 2}}, .target = {tokens, {2, 1}}},
                               samples{.preds = {tokens, {1, 2}}, .target = {tokens, {1}}},
                               samples{.preds = {logits, {2, 2}}, .target = {logits, {2}}}})
        CHECK_THROWS_AS(of({}, bad), error);
}

} // namespace perplexity_test

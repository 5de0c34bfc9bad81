// SPDX-License-Identifier: Apache-2.0
// Numbers that torchmetrics 1.9.0 gives for a few samples. Many more: tests/interop.

#include <skein/core/error.hpp>
#include <skein/metrics/regression.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

namespace regression_test {

using namespace skein;
using namespace skein::metrics;
using Catch::Approx;

template <class M>
double of(M made, const samples& shown) {
    made.update(shown);
    return made.compute();
}

const float preds[] = {2.5f, 0, 2, 8}, target[] = {3, -.5f, 2, 7};
const samples four{.preds = {preds, {4}}, .target = {target, {4}}};

TEST_CASE("regression: four samples") {
    CHECK(of(mae{}, four) == .5);
    CHECK(of(mse{}, four) == .375);
    CHECK(of(rmse{}, four) == Approx(.6123724));
    CHECK(of(r2{}, four) == Approx(.9486081));
    CHECK(of(r2{.adjusted = 1}, four) == Approx(.9229122));
    CHECK(of(r2{.adjusted = 3}, four) == Approx(.9486081)); // as torchmetrics falls back
}

TEST_CASE("regression: many float32, other types and weights are the same sums") {
    std::vector<float> a(37), b(37);
    std::vector<double> c(37);
    std::vector<bool> unused;
    double distance = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(i) * .5f;
        b[i] = static_cast<float>(i % 5);
        c[i] = b[i];
        distance += std::abs(a[i] - b[i]);
    }
    CHECK(of(mae{}, {.preds = {a.data(), {37}}, .target = {b.data(), {37}}}) ==
          Approx(distance / 37));
    CHECK(of(mae{}, {.preds = {a.data(), {37}}, .target = {c.data(), {37}}}) ==
          Approx(distance / 37));
    const std::int64_t whole[] = {3, 0, 2, 7};
    const float weight[] = {0, 2, 1, 1};
    CHECK(of(mae{}, {.preds = {preds, {4}}, .target = {whole, {4}}, .weight = {weight, {4}}}) ==
          .25);
    CHECK(of(mse{},
             {.preds = {preds, {2, 2}}, .target = {target, {2, 2}}, .weight = {weight, {2}}}) ==
          0.5);
    const bool mask[] = {false, true, true, true};
    CHECK(of(r2{}, {.preds = {preds, {4}}, .target = {target, {4}}, .weight = {mask, {4}}}) ==
          Approx(.9571429));
}

TEST_CASE("regression: targets that do not spread") {
    const double same[] = {1, 1, 1}, close[] = {1, 1, 1.001}, far[] = {1, 2, 3};
    CHECK(of(r2{}, {.preds = {close, {3}}, .target = {same, {3}}}) == 1);
    CHECK(of(r2{}, {.preds = {far, {3}}, .target = {same, {3}}}) == 0);
    CHECK(of(r2{}, {.preds = {same, {3}}, .target = {far, {3}}}) == Approx(-1.5));
}

TEST_CASE("regression: no sample, NaN and shapes") {
    CHECK(std::isnan(mae{}.compute()));
    CHECK(std::isnan(rmse{}.compute()));
    CHECK(std::isnan(of(r2{}, {.preds = {preds, {1}}, .target = {target, {1}}})));
    const float odd[] = {std::numeric_limits<float>::quiet_NaN()};
    CHECK(std::isnan(of(mse{}, {.preds = {odd, {1}}, .target = {target, {1}}})));
    CHECK_THROWS_AS(of(mse{}, {.preds = {preds, {4}}, .target = {target, {2, 2}}}), error);
    CHECK_THROWS_AS(of(mse{}, {.preds = {preds, {4}}}), error);
    CHECK_THROWS_AS(of(r2{}, {.preds = {preds, {2, 2}}, .target = {target, {2, 2}}}), error);
    CHECK(of(r2{}, {.preds = {preds, {4, 1}}, .target = {target, {4, 1}}}) == Approx(.9486081));
}

} // namespace regression_test

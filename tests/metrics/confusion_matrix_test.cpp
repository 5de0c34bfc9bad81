// SPDX-License-Identifier: Apache-2.0
// Numbers that torchmetrics 1.9.0 gives for a few samples. Many more: tests/interop.

#include <skein/metrics/confusion_matrix.hpp>

#include <cstdint>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace confusion_matrix_test {

using namespace skein;
using namespace skein::metrics;

score of(confusion_matrix made, const samples& shown) {
    made.begin();
    made.update(shown);
    return made.compute();
}

const std::int64_t said[] = {0, 1, 1, 2, 1, 0}, target[] = {0, 1, 0, 2, 2, 0};
const samples three_classes{.preds = {said, {6}}, .target = {target, {6}}};

TEST_CASE("confusion matrices: rows are targets, columns predictions") {
    const auto got = of({.classes = 3}, three_classes);
    CHECK(got.shape == std::vector<std::size_t>{3, 3});
    CHECK(got.values == std::vector<double>{2, 1, 0, 0, 1, 0, 0, 1, 1});
}

TEST_CASE("confusion matrices: normalised, and a row of nothing is 0") {
    const auto rows = of({.classes = 4, .normalize = normalize::rows}, three_classes);
    CHECK(rows.values ==
          std::vector<double>{2.0 / 3, 1.0 / 3, 0, 0, 0, 1, 0, 0, 0, .5, .5, 0, 0, 0, 0, 0});
    const auto columns = of({.classes = 3, .normalize = normalize::columns}, three_classes);
    CHECK(columns.values == std::vector<double>{1, 1.0 / 3, 0, 0, 1.0 / 3, 0, 0, 1.0 / 3, 1});
    const auto all = of({.classes = 3, .normalize = normalize::all}, three_classes);
    CHECK(all.values ==
          std::vector<double>{2.0 / 6, 1.0 / 6, 0, 0, 1.0 / 6, 0, 0, 1.0 / 6, 1.0 / 6});
}

TEST_CASE("confusion matrices: binary and of labels") {
    const float binary[] = {.1f, .9f, .6f, .5f, .51f, .2f};
    const bool truths[] = {false, true, false, true, true, true};
    CHECK(of({}, {.preds = {binary, {6}}, .target = {truths, {6}}}).values ==
          std::vector<double>{1, 1, 2, 2});
    const float many[] = {.9f, .2f, .7f, .3f, .8f, .6f, .6f, .4f, .1f};
    const std::int64_t are[] = {1, 0, 1, 0, 0, 1, 1, 0, 0};
    const auto got = of({.labels = 3}, {.preds = {many, {3, 3}}, .target = {are, {3, 3}}});
    CHECK(got.shape == std::vector<std::size_t>{3, 2, 2});
    CHECK(got.values == std::vector<double>{1, 0, 0, 2, 2, 1, 0, 0, 1, 0, 0, 2});
}

TEST_CASE("confusion matrices: scores that are said to be logits") {
    const float low[] = {.2f, .3f};
    const bool truths[] = {true, false};
    const samples shown{.preds = {low, {2}}, .target = {truths, {2}}};
    CHECK(of({}, shown).values == std::vector<double>{1, 0, 1, 0});
    CHECK(of({.logits = true}, shown).values == std::vector<double>{0, 1, 0, 1});
}

TEST_CASE("confusion matrices: left out by ignore_index, counted by weight") {
    const auto without = of({.classes = 3, .ignore_index = 0}, three_classes);
    CHECK(without.values == std::vector<double>{0, 0, 0, 0, 1, 0, 0, 1, 1});
    const float weight[] = {0, 1, .5f, 0, 0, 2};
    const auto weighed = of(
        {.classes = 3}, {.preds = {said, {6}}, .target = {target, {6}}, .weight = {weight, {6}}});
    CHECK(weighed.values == std::vector<double>{2, .5, 0, 0, 1, 0, 0, 0, 0});
}

} // namespace confusion_matrix_test

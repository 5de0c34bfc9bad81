// SPDX-License-Identifier: Apache-2.0
// Numbers that torchmetrics 1.9.0 gives for a few samples. Many more: tests/interop.

#include <skein/core/error.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/metrics/metric_list.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace curves_test {

using namespace skein;
using namespace skein::metrics;

using numbers = std::vector<double>;

const float binary[] = {.1f, .9f, .6f, .5f, .51f, .2f};
const std::int64_t truths[] = {0, 1, 0, 1, 1, 1}, wrong[] = {0, 0, 0, 0, 0, 0},
                   right[] = {1, 1, 1, 1, 1, 1};
const samples two{.preds = {binary, {6}}, .target = {truths, {6}}};

const float scores[] = {.7f, .2f, .1f, .1f, .6f, .3f, .3f, .4f, .3f,
                        .2f, .3f, .5f, .1f, .8f, .1f, .5f, .3f, .2f};
const float of_four[] = {.7f, .2f, .1f, 0, .1f, .6f, .3f, 0, .3f, .4f, .3f, 0,
                         .2f, .3f, .5f, 0, .1f, .8f, .1f, 0, .5f, .3f, .2f, 0};
const std::int64_t target[] = {0, 1, 0, 2, 2, 0};
const samples three{.preds = {scores, {6, 3}}, .target = {target, {6}}};
const samples four{.preds = {of_four, {6, 4}}, .target = {target, {6}}}; // one is never seen

template <class M>
numbers of(M made, const samples& shown) {
    any_metric one("it", std::move(made));
    one.update(shown);
    return one.compute().values;
}

bool near(const numbers& got, const numbers& wanted) {
    bool same = got.size() == wanted.size();
    for (std::size_t i = 0; same && i < got.size(); ++i)
        same = std::isnan(wanted[i]) ? std::isnan(got[i]) : std::abs(got[i] - wanted[i]) < 1e-6;
    if (!same)
        for (const double v : got) UNSCOPED_INFO(v);
    return same;
}

constexpr double third = 1.0 / 3, odd = std::numeric_limits<double>::quiet_NaN();

template <class M>
std::optional<errc> refused(M made, const samples& shown) {
    try {
        (void)of(std::move(made), shown);
    } catch (const error& why) {
        return why.code();
    }
    return std::nullopt;
}

TEST_CASE("curves: binary") {
    CHECK(near(of(exact_auroc{}, two), {.625}));
    CHECK(near(of(auroc{}, two), {.625}));
    CHECK(near(of(auroc{.thresholds = 5}, two), {.6875}));
    CHECK(near(of(exact_average_precision{}, two), {.8041667}));
    CHECK(near(of(average_precision{}, two), {.8041667}));
    CHECK(near(of(average_precision{.thresholds = 5}, two), {.7916667}));
}

TEST_CASE("curves: a class against the others") {
    const auto none = average::none, weighted = average::weighted;
    CHECK(near(of(exact_auroc{.classes = 3}, three), {.7875}));
    CHECK(near(of(exact_auroc{.classes = 3, .average = weighted}, three), {.8208333}));
    CHECK(near(of(exact_auroc{.classes = 3, .average = none}, three), {1, .8, .5625}));
    CHECK(near(of(auroc{.classes = 3, .average = none, .thresholds = 5}, three), {1, .8, .625}));
    CHECK(near(of(auroc{.classes = 3, .average = weighted, .thresholds = 5}, three), {.8416667}));
    CHECK(near(of(exact_average_precision{.classes = 3}, three), {.7222222}));
    CHECK(near(of(average_precision{.classes = 3, .average = weighted, .thresholds = 5}, three),
               {.8055556}));
}

TEST_CASE("curves: classes that never occur") {
    const auto none = average::none;
    CHECK(near(of(exact_auroc{.classes = 4}, four), {.590625}));
    CHECK(near(of(auroc{.classes = 4, .average = none, .thresholds = 5}, four), {1, .8, .625, 0}));
    CHECK(near(of(exact_average_precision{.classes = 4}, four), {.7222222}));
    CHECK(near(of(exact_average_precision{.classes = 4, .average = none}, four),
               {1, .5, 2 * third, odd}));
    CHECK(near(of(average_precision{.classes = 4, .thresholds = 5}, four), {.5416667}));
    const samples first{.preds = {scores, {6, 3}}, .target = {wrong, {6}}};
    CHECK(near(of(exact_average_precision{.classes = 3, .average = none}, first), {1, 0, 0}));
}

TEST_CASE("curves: only right or only wrong") {
    const samples never{.preds = {binary, {6}}, .target = {wrong, {6}}},
        always{.preds = {binary, {6}}, .target = {right, {6}}};
    CHECK(near(of(exact_auroc{}, never), {0}));
    CHECK(near(of(exact_auroc{}, always), {0}));
    CHECK(near(of(auroc{}, never), {0}));
    CHECK(near(of(exact_average_precision{}, never), {0}));
    CHECK(near(of(exact_average_precision{}, always), {1}));
    CHECK(near(of(average_precision{}, always), {1}));
    const samples nothing{.preds = {binary, {0}}, .target = {wrong, {0}}};
    CHECK(near(of(auroc{}, nothing), {0}));
    CHECK(near(of(average_precision{}, nothing), {0}));
    CHECK(near(of(exact_auroc{}, nothing), {0}));
    CHECK(near(of(auroc{.classes = 3}, {.preds = {scores, {0, 3}}, .target = {wrong, {0}}}), {0}));
}

TEST_CASE("curves: labels") {
    const float many[] = {.9f, .2f, .7f, .3f, .8f, .6f, .6f, .4f, .1f};
    const std::int64_t are[] = {1, 0, 1, 0, 1, 1, 1, 1, 0};
    const samples shown{.preds = {many, {3, 3}}, .target = {are, {3, 3}}};
    CHECK(near(of(exact_auroc{.labels = 3, .average = average::micro}, shown), {1}));
    CHECK(near(of(auroc{.labels = 3, .average = average::micro, .thresholds = 5}, shown),
               {.9722222}));
    CHECK(
        near(of(average_precision{.labels = 3, .average = average::micro, .thresholds = 5}, shown),
             {.9761904}));
    CHECK(
        near(of(auroc{.labels = 3, .average = average::none, .thresholds = 5}, shown), {1, 1, 1}));
}

TEST_CASE("curves: logits, weights and what is left out") {
    float logits[6], large[18];
    for (std::size_t i = 0; i < 6; ++i) logits[i] = binary[i] * 8 - 4;
    for (std::size_t i = 0; i < 18; ++i) large[i] = scores[i] * 8;
    CHECK(near(of(auroc{.thresholds = 5}, {.preds = {logits, {6}}, .target = {truths, {6}}}),
               {.6875}));
    CHECK(near(of(auroc{.classes = 3, .thresholds = 5},
                  {.preds = {large, {6, 3}}, .target = {target, {6}}}),
               {.8277778}));

    const std::int64_t with_more[] = {0, 1, 0, 1, 1, 1, 9, 9};
    const float more[] = {.1f,  .9f, .6f, .5f,
                          .51f, .2f, -3,  7}; // what does not count makes no logits
    const bool mask[] = {true, true, true, true, true, true, false, false};
    const samples ignoring{.preds = {more, {8}}, .target = {with_more, {8}}};
    const samples masked{.preds = {more, {8}}, .target = {with_more, {8}}, .weight = {mask, {8}}};
    CHECK(near(of(auroc{.ignore_index = 9}, ignoring), {.625}));
    CHECK(near(of(exact_auroc{.ignore_index = 9}, ignoring), {.625}));
    CHECK(near(of(auroc{}, masked), {.625}));
    // A weight of 2 is the sample twice.
    const float twice[] = {.1f, .9f, .6f, .5f, .51f, .2f, .6f}, weight[] = {1, 1, 2, 1, 1, 1};
    const std::int64_t again[] = {0, 1, 0, 1, 1, 1, 0};
    CHECK(near(of(exact_average_precision{},
                  {.preds = {binary, {6}}, .target = {truths, {6}}, .weight = {weight, {6}}}),
               of(exact_average_precision{}, {.preds = {twice, {7}}, .target = {again, {7}}})));
}

TEST_CASE("curves: what is said to be logits is so in every call, however samples are parted") {
    const float given[] = {-1, 0, 1};
    const bool are[] = {true, false, true};
    const auto parted = [&](auto made) {
        any_metric one("it", std::move(made));
        for (std::size_t i = 0; i < 3; ++i)
            one.update({.preds = {given + i, {1}}, .target = {are + i, {1}}});
        return one.compute().values;
    };
    const samples all{.preds = {given, {3}}, .target = {are, {3}}};
    CHECK(near(of(exact_auroc{}, all), {.5}));
    CHECK(near(parted(exact_auroc{.logits = true}), {.5}));
    CHECK(near(parted(exact_auroc{}), {1})); // 0 alone is a probability, and less than sigmoid(-1)
    CHECK(parted(exact_average_precision{.logits = true}) == of(exact_average_precision{}, all));
    CHECK(parted(auroc{.logits = true}) == of(auroc{}, all));
    CHECK(parted(average_precision{.logits = true}) == of(average_precision{}, all));
    CHECK_THROWS_AS(of(auroc{.logits = false}, all), error);
    const float rows[] = {.1f, .2f, .7f, -3, .5f, .4f};
    const std::int64_t label[] = {2, 1};
    any_metric apart("it", exact_auroc{.classes = 3, .average = average::none, .logits = true});
    for (std::size_t i = 0; i < 2; ++i)
        apart.update({.preds = {rows + 3 * i, {1, 3}}, .target = {label + i, {1}}});
    const samples both{.preds = {rows, {2, 3}}, .target = {label, {2}}};
    CHECK(apart.compute().values == of(exact_auroc{.classes = 3, .average = average::none}, both));
    CHECK(refused(auroc{.classes = 3, .logits = false}, both) == errc::invalid_argument);
}

TEST_CASE("curves: only the exact ones gather") {
    metric_list list;
    list.add("auroc", auroc{.classes = 10}).add("ap", average_precision{});
    CHECK(!list.has_rows());
    list.add("exact", exact_auroc{});
    CHECK(list.has_rows());
}

TEST_CASE("curves: what is refused") {
    CHECK(refused(auroc{.thresholds = 1}, two) == errc::usage);
    CHECK(refused(auroc{.classes = 3, .average = average::micro}, three) == errc::usage);
    CHECK(refused(exact_auroc{.classes = 3, .labels = 3}, three) == errc::usage);
    CHECK(refused(auroc{}, {.preds = {truths, {6}}, .target = {truths, {6}}}) ==
          errc::invalid_argument);
    CHECK(refused(auroc{.classes = 3}, {.preds = {truths, {6}}, .target = {target, {6}}}) ==
          errc::invalid_argument);
    CHECK(refused(auroc{.classes = 2}, three) == errc::invalid_argument);
    CHECK(refused(auroc{}, {.preds = {binary, {6}}, .target = {target, {6}}}) ==
          errc::invalid_argument);
    const float nan[] = {.1f, static_cast<float>(odd)};
    CHECK(refused(auroc{}, {.preds = {nan, {2}}, .target = {truths, {2}}}) == errc::not_finite);
    const float infinite[] = {1, std::numeric_limits<float>::infinity()};
    CHECK(refused(auroc{.classes = 2}, {.preds = {infinite, {1, 2}}, .target = {truths, {1}}}) ==
          errc::not_finite);
    CHECK(refused(auroc{}, {.preds = {infinite, {2}}, .target = {truths, {2}}}) == std::nullopt);
    CHECK(refused(auroc{.classes = 2}, {.preds = {nan, {1, 2}}, .target = {truths, {1}}}) ==
          errc::not_finite);
    // Logits without a softmax; a class that a mask has ruled out has one.
    constexpr float inf = std::numeric_limits<float>::infinity();
    const float overflowed[] = {0, inf, 1}, none[] = {-inf, -inf, -inf}, ruled_out[] = {-inf, 2, 1};
    const auto one = [](const float* preds) {
        return samples{.preds = {preds, {1, 3}}, .target = {truths, {1}}};
    };
    for (const auto* preds : {overflowed, none}) {
        CHECK(refused(auroc{.classes = 3}, one(preds)) == errc::not_finite);
        CHECK(refused(exact_auroc{.classes = 3}, one(preds)) == errc::not_finite);
    }
    CHECK(!refused(auroc{.classes = 3}, one(ruled_out)));
}

} // namespace curves_test

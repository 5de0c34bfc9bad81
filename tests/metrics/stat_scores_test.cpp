// SPDX-License-Identifier: Apache-2.0
// Decisions: what is counted of scores, labels and truths, and what is refused.

#include <skein/core/error.hpp>
#include <skein/metrics/detail/decisions.hpp>
#include <skein/metrics/stat_scores.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace stat_scores_test {

using namespace skein;
using namespace skein::metrics;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

constexpr float odd = std::numeric_limits<float>::quiet_NaN();

std::vector<skein::metrics::stat> counted(const stat_options& options, const samples& shown) {
    summed counts;
    begin_stat_scores(counts, options);
    add_stat_scores(counts, options, shown);
    return stats_of(counts, options);
}

bool same(const skein::metrics::stat& a, double tp, double fp, double tn, double fn) {
    return a.tp == tp && a.fp == fp && a.tn == tn && a.fn == fn;
}

std::optional<errc> code_of(const stat_options& options, const samples& shown) {
    try {
        (void)counted(options, shown);
    } catch (const error& why) {
        return why.code();
    }
    return std::nullopt;
}

TEST_CASE("stat scores: of classes, by scores and by labels") {
    const float scores[] = {.7f, .2f, .1f, .1f, .6f, .3f, .3f, .4f, .3f, .2f, .3f, .5f};
    const std::int64_t target[] = {0, 1, 0, 2}, said[] = {0, 1, 1, 2};
    for (const auto& all :
         {counted({.classes = 3}, {.preds = {scores, {4, 3}}, .target = {target, {4}}}),
          counted({.classes = 3}, {.preds = {said, {4}}, .target = {target, {4}}}),
          counted({.classes = 3}, {.preds = {said, {2, 2}}, .target = {target, {2, 2}}})}) {
        CHECK(same(all[0], 1, 0, 2, 1));
        CHECK(same(all[1], 1, 1, 2, 0));
        CHECK(same(all[2], 1, 0, 3, 0));
        CHECK(same(sum_of(all), 3, 1, 7, 1));
    }
}

TEST_CASE("stat scores: dimensions behind the classes") {
    // [1, 2, 3]: classes lie 3 apart
    const double scores[] = {1, 0, 5, 0, 2, 4};
    const std::int64_t target[] = {0, 1, 1};
    const auto all =
        counted({.classes = 2}, {.preds = {scores, {1, 2, 3}}, .target = {target, {1, 3}}});
    CHECK(same(all[1], 1, 0, 1, 1));
}

TEST_CASE("stat scores: weights, and what does not count is not looked at") {
    const float scores[] = {1, 0, odd, 0, 0, 1};
    const std::int64_t target[] = {0, 77, 0};
    const float weight[] = {2, 0, .5f};
    const bool mask[] = {true, false, true};
    auto all =
        counted({.classes = 2},
                {.preds = {scores, {3, 2}}, .target = {target, {3}}, .weight = {weight, {3}}});
    CHECK(same(all[0], 2, 0, 0, .5));
    all = counted({.classes = 2},
                  {.preds = {scores, {3, 2}}, .target = {target, {3}}, .weight = {mask, {3}}});
    CHECK(same(all[0], 1, 0, 0, 1));
    all = counted({.classes = 2, .ignore_index = 77},
                  {.preds = {scores, {3, 2}}, .target = {target, {3}}});
    CHECK(same(all[0], 1, 0, 0, 1));
    // One weight for each row.
    const bool truths[] = {true, false, true, true};
    const float rows[] = {1, 3};
    all = counted({.labels = 2},
                  {.preds = {truths, {2, 2}}, .target = {truths, {2, 2}}, .weight = {rows, {2}}});
    CHECK(same(all[0], 4, 0, 0, 0));
    CHECK(same(all[1], 3, 0, 1, 0));
}

TEST_CASE("stat scores: among the k best is right, and no other class is blamed") {
    const float scores[] = {.5f, .3f, .2f, .5f, .5f, .5f};
    const std::int64_t target[] = {1, 2};
    auto all =
        counted({.classes = 3, .top_k = 2}, {.preds = {scores, {2, 3}}, .target = {target, {2}}});
    CHECK(same(all[0], 0, 1, 1, 0)); // of equal scores the first are better: class 2 is third
    CHECK(same(all[1], 1, 0, 1, 0));
    CHECK(same(all[2], 0, 0, 1, 1));
    all = counted({.classes = 3, .top_k = 3}, {.preds = {scores, {2, 3}}, .target = {target, {2}}});
    CHECK(same(sum_of(all), 2, 0, 4, 0));
}

TEST_CASE("stat scores: probabilities, unless one of a call is none") {
    const float probabilities[] = {.2f, .6f, .5f}, logits[] = {.2f, -2, 3};
    const std::int64_t target[] = {1, 0, 1};
    CHECK(
        same(counted({}, {.preds = {probabilities, {3}}, .target = {target, {3}}})[0], 0, 1, 0, 2));
    CHECK(same(counted({}, {.preds = {logits, {3}}, .target = {target, {3}}})[0], 2, 0, 1, 0));
    // Looked up in those that count, where asked for.
    const std::int64_t ignoring[] = {1, 9, 9};
    const samples shown{.preds = {logits, {3}}, .target = {ignoring, {3}}};
    CHECK(counted({.ignore_index = 9}, shown)[0].tp == 1);
    CHECK(counted({.ignore_index = 9, .counted_tell_logits = true}, shown)[0].fn == 1);
}

TEST_CASE(
    "stat scores: what is said to be logits is so in every call, however samples are parted") {
    const float logits[] = {.2f, -2, 3};
    const std::int64_t target[] = {1, 0, 1};
    for (const auto said : {std::optional<bool>(), std::optional(true)}) {
        const stat_options options{.logits = said};
        summed together, parted;
        begin_stat_scores(together, options);
        begin_stat_scores(parted, options);
        add_stat_scores(together, options, {.preds = {logits, {3}}, .target = {target, {3}}});
        for (std::size_t i = 0; i < 3; ++i)
            add_stat_scores(parted, options,
                            {.preds = {logits + i, {1}}, .target = {target + i, {1}}});
        CHECK(stats_of(together, options)[0].tp == 2);
        // .2 alone is no logit for who is not told
        CHECK(stats_of(parted, options)[0].tp == (said == true ? 2 : 1));
    }
    const samples all{.preds = {logits, {3}}, .target = {target, {3}}};
    CHECK(code_of({.logits = false}, all) == errc::invalid_argument);
    CHECK(counted({.logits = false}, {.preds = {logits, {1}}, .target = {target, {1}}})[0].fn == 1);
}

TEST_CASE("stat scores: counts beyond what a float32 can count are exact") {
    const std::int64_t label[] = {1};
    const double many[] = {16777216}, one[] = {1};
    summed counts;
    const stat_options options{.classes = 2};
    begin_stat_scores(counts, options);
    for (const auto* weight : {many, one, one, one})
        add_stat_scores(counts, options,
                        {.preds = {label, {1}}, .target = {label, {1}}, .weight = {weight, {1}}});
    CHECK(stats_of(counts, options)[1].tp == 16777219);
    CHECK(stats_of(counts, options)[0].tn == 16777219);
}

TEST_CASE("stat scores: the sigmoid is what is compared with the threshold") {
    for (const double threshold : {0.0, 0.001, 0.3, 0.5, 0.75, 0.9999, 1.0}) {
        const metrics::detail::above_threshold<float> above(threshold, true);
        for (int i = -20000; i <= 20000; ++i) {
            const float x = static_cast<float>(i) * 0.0006f;
            if (above(x) != (metrics::detail::sigmoid(x) > static_cast<float>(threshold)))
                FAIL(threshold << " " << x);
        }
    }
}

TEST_CASE("stat scores: the largest of many, the first of several, and NaN anywhere") {
    for (const std::size_t n : {1, 2, 15, 31, 32, 33, 47, 48, 100}) {
        std::vector<float> scores(n, -3);
        for (std::size_t at = 0; at < n; ++at) {
            scores[at] = 2;
            CHECK(metrics::detail::argmax(scores.data(), n) == at);
            CHECK(metrics::detail::argmax_apart(scores.data(), n, 1) == at);
            scores[n - 1] = 2;
            CHECK(metrics::detail::argmax(scores.data(), n) == at);
            scores[n - 1] = -3;
            scores[at] = odd;
            CHECK(metrics::detail::argmax(scores.data(), n) == n);
            CHECK(metrics::detail::argmax_apart(scores.data(), n, 1) == n);
            scores[at] = -3;
        }
        CHECK(metrics::detail::argmax(
                  std::vector<double>(n, -std::numeric_limits<double>::infinity()).data(), n) == 0);
    }
}

TEST_CASE("stat scores: what does not fit is refused, with its place") {
    const float scores[] = {.1f, .9f, .8f, odd};
    const std::int64_t target[] = {0, 5}, truths[] = {0, 1, 2, 1};
    const samples nan{.preds = {scores, {2, 2}}, .target = {truths, {2}}};
    CHECK(code_of({.classes = 2}, nan) == errc::not_finite);
    CHECK_THROWS_MATCHES(counted({.classes = 2}, nan), error,
                         MessageMatches(ContainsSubstring("preds[1, 1] is nan")));
    CHECK_THROWS_MATCHES(counted({}, {.preds = {scores, {4}}, .target = {truths, {4}}}), error,
                         MessageMatches(ContainsSubstring("target[2] is 2, labels are 0 to 1")));
    CHECK_THROWS_MATCHES(
        counted({.classes = 2}, {.preds = {scores, {2, 2}}, .target = {target, {2}}}), error,
        MessageMatches(ContainsSubstring("target[1] is 5, labels are 0 to 1") &&
                       ContainsSubstring(".ignore_index = 5")));
    CHECK_THROWS_MATCHES(counted({.classes = 2}, {.preds = {target, {2}}, .target = {truths, {2}}}),
                         error, MessageMatches(ContainsSubstring("preds[1] is 5")));
    CHECK_THROWS_MATCHES(
        counted({.classes = 3}, {.preds = {scores, {2, 2}}, .target = {truths, {2}}}), error,
        MessageMatches(ContainsSubstring(".classes = 2 meant?")));
    CHECK_THROWS_MATCHES(counted({}, {.preds = {scores, {2, 2}}, .target = {truths, {2}}}), error,
                         MessageMatches(ContainsSubstring(".classes = 2 meant?")));
    CHECK_THROWS_MATCHES(
        counted({.classes = 2}, {.preds = {scores, {2, 2}}, .target = {scores, {2}}}), error,
        MessageMatches(ContainsSubstring("target is float32 [2], labels are int64 or bool")));
    for (const samples& shown :
         {samples{.preds = {scores, {2}}, .target = {truths, {2}}},    // scores as labels
          samples{.preds = {scores, {2, 2}}, .target = {truths, {3}}}, // other rows
          samples{.preds = {scores, {2, 2}}, .target = {}}, samples{},
          samples{.preds = {scores, {1, 2, 2}}, .target = {truths, {1, 1}}},
          samples{.preds = {truths, {2, 2}}, .target = {truths, {2}}}})
        CHECK(code_of({.classes = 2}, shown) == errc::invalid_argument);
    CHECK(code_of({.labels = 3}, {.preds = {scores, {2, 2}}, .target = {truths, {2, 2}}}) ==
          errc::invalid_argument);
    CHECK(code_of({.labels = 2}, {.preds = {scores, {2, 2}}, .target = {truths, {4}}}) ==
          errc::invalid_argument);
    CHECK(code_of({.classes = 2, .top_k = 2}, {.preds = {truths, {2}}, .target = {truths, {2}}}) ==
          errc::invalid_argument);
}

TEST_CASE("stat scores: weights that are none") {
    const std::int64_t target[] = {0, 1};
    const float negative[] = {1, -1}, nan[] = {1, odd}, three[] = {1, 1, 1};
    for (const auto& weight :
         {array_view(negative, {2}), array_view(nan, {2}), array_view(three, {3})})
        CHECK(code_of({.classes = 2},
                      {.preds = {target, {2}}, .target = {target, {2}}, .weight = weight}) ==
              errc::invalid_argument);
}

TEST_CASE("stat scores: options that make no sense") {
    for (const auto& options :
         {stat_options{.classes = 2, .labels = 2}, stat_options{.classes = 1},
          stat_options{.labels = 1}, stat_options{.classes = 2, .top_k = 3},
          stat_options{.classes = 2, .top_k = 0}, stat_options{.labels = 4, .top_k = 2},
          stat_options{.threshold = 1.5}, stat_options{.threshold = odd}})
        CHECK(code_of(options, {}) == errc::usage);
}

TEST_CASE("stat scores: no sample") {
    const float none[] = {0};
    const std::int64_t target[] = {0};
    const auto all = counted({.classes = 2}, {.preds = {none, {0, 2}}, .target = {target, {0}}});
    CHECK(same(all[1], 0, 0, 0, 0));
    CHECK(ratio(0, 0) == 0);
    CHECK(ratio(0, 0, 1) == 1);
    CHECK(ratio(1, 4, 1) == .25);
}

} // namespace stat_scores_test

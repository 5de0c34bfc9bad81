// SPDX-License-Identifier: Apache-2.0
// Numbers that torchmetrics 1.9.0 gives for a few samples. Many more: tests/interop.

#include <skein/metrics/classification.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace classification_test {

using namespace skein;
using namespace skein::metrics;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

using numbers = std::vector<double>;

const float scores[] = {.7f, .2f, .1f, .1f, .6f, .3f, .3f, .4f, .3f,
                        .2f, .3f, .5f, .1f, .8f, .1f, .5f, .3f, .2f};
const float of_five[] = {.7f, .2f, .1f, 0, 0, .1f, .6f, .3f, 0, 0, .3f, .4f, .3f, 0, 0,
                         .2f, .3f, .5f, 0, 0, .1f, .8f, .1f, 0, 0, .5f, .3f, .2f, 0, 0};
const std::int64_t target[] = {0, 1, 0, 2, 2, 0};
const samples three_classes{.preds = {scores, {6, 3}}, .target = {target, {6}}};
const samples five_classes{.preds = {of_five, {6, 5}},
                           .target = {target, {6}}}; // two are never seen

template <class M>
numbers of(M made, const samples& shown) {
    any_metric one("it", std::move(made));
    one.update(shown);
    return one.compute().values;
}

/// Micro, macro, weighted, and each class.
template <class M>
numbers averages(M made, const samples& shown) {
    numbers all;
    for (const auto how : {average::micro, average::macro, average::weighted, average::none}) {
        made.average = how;
        for (const double v : of(made, shown)) all.push_back(v);
    }
    return all;
}

bool near(const numbers& got, const numbers& wanted) {
    bool same = got.size() == wanted.size();
    for (std::size_t i = 0; same && i < got.size(); ++i) same = std::abs(got[i] - wanted[i]) < 1e-6;
    if (!same)
        for (const double v : got) UNSCOPED_INFO(v);
    return same;
}

/// Of logits that lie in [0, 1]: which are true depends on whether they are said to be logits.
template <class M>
bool knows_logits(M made) {
    const float low[] = {.2f, .3f};
    const std::int64_t both[] = {1, 0};
    const samples shown{.preds = {low, {2}}, .target = {both, {2}}};
    auto told = made, told_not = made;
    told.logits = true;
    told_not.logits = false;
    return of(told, shown) != of(made, shown) && of(told_not, shown) == of(made, shown);
}

constexpr double third = 1.0 / 3;

TEST_CASE("classification: each metric can be told that its scores are logits") {
    CHECK(knows_logits(precision{}));
    CHECK(knows_logits(recall{}));
    CHECK(knows_logits(fbeta{.beta = 2}));
    CHECK(knows_logits(f1{}));
    CHECK(knows_logits(specificity{}));
    CHECK(knows_logits(jaccard{}));
    const float low[] = {.2f, .3f, .4f};
    const std::int64_t right[] = {1, 1, 0};
    const samples shown{.preds = {low, {3}}, .target = {right, {3}}};
    CHECK(near(of(accuracy{}, shown), {third}));
    CHECK(near(of(accuracy{.logits = true}, shown), {2 * third}));
}

TEST_CASE("classification: three classes") {
    CHECK(near(averages(accuracy{.classes = 3}, three_classes),
               {2 * third, .7222222, 2 * third, 2 * third, 1, .5}));
    CHECK(near(averages(precision{.classes = 3}, three_classes),
               {2 * third, .7777778, .8888889, 1, third, 1}));
    CHECK(near(averages(recall{.classes = 3}, three_classes),
               {2 * third, .7222222, 2 * third, 2 * third, 1, .5}));
    CHECK(near(averages(f1{.classes = 3}, three_classes),
               {2 * third, .6555555, .7055556, .8, .5, 2 * third}));
    CHECK(near(averages(specificity{.classes = 3}, three_classes),
               {.8333333, .8666667, .9333334, 1, .6, 1}));
    CHECK(near(averages(jaccard{.classes = 3}, three_classes),
               {.5, .5, .5555556, 2 * third, third, .5}));
    CHECK(near(of(fbeta{.beta = 2, .classes = 3, .average = average::macro}, three_classes),
               {.6613757}));
    CHECK(near(of(accuracy{.classes = 3, .top_k = 2}, three_classes), {.8333333}));
    CHECK(near(of(f1{.classes = 3, .average = average::macro, .top_k = 2}, three_classes),
               {.7777778}));
}

TEST_CASE("classification: classes that never occur have no part in a macro average") {
    const auto macro = average::macro;
    CHECK(near(of(accuracy{.classes = 5, .average = macro}, five_classes), {.7222222}));
    CHECK(near(of(precision{.classes = 5, .average = macro}, five_classes), {.7777778}));
    CHECK(near(of(f1{.classes = 5, .average = macro}, five_classes), {.6555555}));
    CHECK(near(of(specificity{.classes = 5, .average = macro}, five_classes), {.8666667}));
    CHECK(near(of(jaccard{.classes = 5}, five_classes), {.5}));
    CHECK(near(
        of(precision{.classes = 5, .average = average::none, .zero_division = 1}, five_classes),
        {1, third, 1, 1, 1}));
}

TEST_CASE("classification: a class that is left out") {
    const auto macro = average::macro;
    CHECK(near(of(accuracy{.classes = 5, .average = macro, .ignore_index = 2}, five_classes),
               {.8333333}));
    CHECK(near(of(precision{.classes = 5, .average = macro, .ignore_index = 2}, five_classes),
               {.75}));
    CHECK(
        near(of(f1{.classes = 5, .average = macro, .ignore_index = 2}, five_classes), {.7333333}));
    CHECK(near(of(jaccard{.classes = 5, .ignore_index = 2}, five_classes), {.5833333}));
}

TEST_CASE("classification: binary") {
    const float probabilities[] = {.1f, .9f, .6f, .5f, .51f, .2f};
    const std::int64_t truths[] = {0, 1, 0, 1, 1, 1};
    const samples shown{.preds = {probabilities, {6}}, .target = {truths, {6}}};
    CHECK(near(of(accuracy{}, shown), {.5}));
    CHECK(near(of(precision{}, shown), {.6666667}));
    CHECK(near(of(recall{}, shown), {.5}));
    CHECK(near(of(f1{}, shown), {.5714286}));
    CHECK(near(of(specificity{}, shown), {.5}));
    CHECK(near(of(jaccard{}, shown), {.4}));
}

TEST_CASE("classification: several labels") {
    const float probabilities[] = {.9f, .2f, .7f, .3f, .8f, .6f, .6f, .4f, .1f};
    const std::int64_t truths[] = {1, 0, 1, 0, 0, 1, 1, 0, 0};
    const samples shown{.preds = {probabilities, {3, 3}}, .target = {truths, {3, 3}}};
    CHECK(near(averages(accuracy{.labels = 3}, shown), {.8888889, .8888889, 1, 1, 2 * third, 1}));
    CHECK(near(averages(precision{.labels = 3}, shown), {.8, 2 * third, 1, 1, 0, 1}));
    CHECK(near(averages(recall{.labels = 3}, shown), {1, 2 * third, 1, 1, 0, 1}));
    CHECK(near(averages(f1{.labels = 3}, shown), {.8888889, 2 * third, 1, 1, 0, 1}));
    CHECK(near(averages(specificity{.labels = 3}, shown), {.8, .8888889, 1, 1, 2 * third, 1}));
    CHECK(near(averages(jaccard{.labels = 3}, shown), {.8, 2 * third, 1, 1, 0, 1}));
}

TEST_CASE("classification: no sample") {
    any_metric one("it", f1{.classes = 3, .average = average::macro});
    CHECK(one.compute().values == numbers{0});
    CHECK(any_metric("it", accuracy{}).compute().values == numbers{0});
    CHECK(std::isnan(any_metric("it", jaccard{.classes = 3}).compute().values[0]));
    CHECK(any_metric("it", jaccard{.classes = 3, .average = average::micro}).compute().values ==
          numbers{0});
}

TEST_CASE("classification: names, options and what makes no sense") {
    CHECK(name_of<f1>() == "f1");
    CHECK(any_metric("it", f1{.classes = 3, .average = average::macro}).describe() ==
          "f1: classes 3, labels 0, average macro, top_k 1, threshold 0.5, logits none, "
          "ignore_index none, "
          "zero_division 0");
    CHECK_THROWS_MATCHES(any_metric("it", fbeta{.beta = 0, .classes = 3}), error,
                         MessageMatches(ContainsSubstring(".beta")));
    CHECK_THROWS_MATCHES(any_metric("it", recall{.classes = 3, .zero_division = .5}), error,
                         MessageMatches(ContainsSubstring(".zero_division")));
    CHECK_THROWS_AS(any_metric("it", jaccard{.classes = 1}), error);
}

TEST_CASE("options of metrics take counts as a program has them, and refuse negative ones") {
    volatile int typed = 3; // no constant: an unsigned option would be a narrowing
    const int classes = typed;
    const std::vector<std::string> names(3);
    CHECK(any_metric("it", accuracy{.classes = classes, .top_k = classes - 1}).describe() ==
          any_metric("it", accuracy{.classes = 3, .top_k = 2}).describe());
    CHECK(any_metric("it", f1{.classes = names.size()}).describe() ==
          any_metric("it", f1{.classes = 3}).describe());
    CHECK(any_metric("it", accuracy{.classes = classes}).describe().find("classes 3") !=
          std::string::npos);
    CHECK_THROWS_WITH(f1{.classes = classes - 4}, ContainsSubstring("a count of -1"));
}

} // namespace classification_test

// SPDX-License-Identifier: Apache-2.0
// Edits of words, characters and tokens. More texts, by torchmetrics: tests/interop.

#include <skein/core/error.hpp>
#include <skein/metrics/error_rate.hpp>
#include <skein/metrics/metric_list.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace error_rate_test {

using namespace skein;
using namespace skein::metrics;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

std::size_t distance_of(const std::vector<std::int64_t>& from,
                        const std::vector<std::int64_t>& to) {
    return edit_distance(from, to);
}

const std::vector<std::string> said{"this is the prediction", "there is an other sample"},
    meant{"this is the reference", "there is another one"};

TEST_CASE("error rates: distances") {
    CHECK(distance_of({}, {}) == 0);
    CHECK(distance_of({1, 2, 3}, {1, 2, 3}) == 0);
    CHECK(distance_of({}, {1, 2}) == 2);
    CHECK(distance_of({1, 2}, {}) == 2);
    CHECK(distance_of({1, 2, 3, 4}, {1, 9, 4}) == 2);
    CHECK(distance_of({3, 9, 20, 20, 5, 14}, {19, 9, 20, 20, 9, 14, 7}) == 3); // kitten, sitting
    CHECK(distance_of({1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}) == 4);
    CHECK(distance_of({1, 1, 1}, {1, 1}) == 1);
}

TEST_CASE("error rates: of words and characters, as torchmetrics' documentation says") {
    word_error_rate words;
    words.update(said, meant);
    CHECK(words.compute() == Approx(.5));
    char_error_rate characters;
    characters.update(said, meant);
    CHECK(characters.compute() == Approx(.3414634));
}

TEST_CASE("error rates: a stage shows rows of numbers, whatever batches number words by") {
    metric_list stage;
    stage.add("word_error_rate", word_error_rate{});
    for (std::size_t i = 0; i < said.size(); ++i) {
        const auto hypotheses = std::span(said).subspan(i, 1),
                   references = std::span(meant).subspan(i, 1);
        // [texts]
        const auto words = words_of(hypotheses, references); // numbers, alike where words are
        stage.update("word_error_rate", words.shown());
        // [/texts]
    }
    CHECK(stage.compute()[0].values[0] == Approx(.5));
}

TEST_CASE("error rates: whitespace and letters of Unicode") {
    const std::vector<std::string> a{" h\u00e9\u3000llo\tw\u00f6rld \n", "", "x"},
        b{"h\u00e9 llo world", "", ""};
    word_error_rate words;
    words.update(a, b);
    CHECK(words.edits[0] == 2);
    CHECK(words.length[0] == 3);
    char_error_rate characters;
    const std::vector<std::string> one{"h\u00e9\U0001F600"}, two{"he\U0001F601"};
    characters.update(one, two);
    CHECK(characters.edits[0] == 2);
    CHECK(characters.length[0] == 3);
    CHECK_THROWS_MATCHES(characters.update(std::vector<std::string>{"a\xff"}, one), error,
                         MessageMatches(ContainsSubstring("hypotheses[0] is no UTF-8 at byte 1")));
}

TEST_CASE("error rates: tokens, padding, weights") {
    const std::int64_t preds[] = {1, 2, 0, 3, 4, 5}, target[] = {1, 0, 3, 4};
    token_error_rate rate{.pad = 0};
    rate.update({.preds = {preds, {2, 3}}, .target = {target, {2, 2}}});
    CHECK(rate.edits[0] == 2);
    CHECK(rate.length[0] == 3);
    const float weight[] = {0, 2};
    token_error_rate weighed{.pad = 0};
    weighed.update({.preds = {preds, {2, 3}}, .target = {target, {2, 2}}, .weight = {weight, {2}}});
    CHECK(weighed.edits[0] == 2);
    CHECK(weighed.length[0] == 4);
    CHECK_THROWS_MATCHES(
        token_error_rate{.pad = 2}.update({.preds = {preds, {2, 3}}, .target = {target, {2, 2}}}),
        error, MessageMatches(ContainsSubstring("behind the padding 2")));
}

TEST_CASE("error rates: nothing, and what is refused") {
    CHECK(std::isnan(word_error_rate{}.compute()));
    word_error_rate rate;
    rate.update(std::vector<std::string>{}, std::vector<std::string>{});
    CHECK(std::isnan(rate.compute()));
    rate.update(std::vector<std::string>{"a"}, std::vector<std::string>{""});
    CHECK(std::isinf(rate.compute()));
    CHECK_THROWS_AS(rate.update(said, std::vector<std::string>{"one"}), error);
    const float scores[] = {1, 2};
    const std::int64_t tokens[] = {1, 2};
    for (const samples& bad :
         {samples{}, samples{.preds = {scores, {1, 2}}, .target = {tokens, {1, 2}}},
          samples{.preds = {tokens, {2}}, .target = {tokens, {2}}},
          samples{.preds = {tokens, {2, 1}}, .target = {tokens, {1, 2}}},
          samples{
              .preds = {tokens, {1, 2}}, .target = {tokens, {1, 2}}, .weight = {scores, {1, 2}}}})
        CHECK_THROWS_AS(rate.update(bad), error);
}

} // namespace error_rate_test

// SPDX-License-Identifier: Apache-2.0
// Lists of metrics: what batches and ranks add up, in any order of merging.

#include <skein/metrics/metric_list.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein;
using namespace skein::metrics;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace metric_list_test {

/// One of every kind of array.
struct every_kind {
    static constexpr std::string_view name = "spread";
    int buckets = 2;
    summed counts{}, total{};
    largest most{};
    smallest least{};
    gathered seen{2};

    void begin() {
        if (buckets < 1) throw error(errc::usage, "a spread of no buckets");
        counts.resize(static_cast<std::size_t>(buckets));
    }
    void update(const samples& s) {
        if (s.preds.size() != s.target.size())
            throw error(errc::invalid_argument, "preds and target differ");
        for (std::size_t i = 0; i < s.preds.size(); ++i) {
            const double v = s.preds[i];
            counts[static_cast<std::size_t>(s.target[i]) % counts.size()] += 1;
            total[0] += v;
            most[0] = std::max(most[0], v);
            least[0] = std::min(least[0], v);
            seen.push({static_cast<float>(v), static_cast<float>(s.target[i])});
        }
    }
    score compute() const {
        return std::vector<double>{counts[0], total[0], most[0], least[0], double(seen.rows())};
    }
};

/// Without a name of its own, and options of several kinds.
struct plain_mean {
    bool twice = false;
    double power = 1.5;
    summed sum{}, weight{};
    void update(const samples& s) {
        for (std::size_t i = 0; i < s.preds.size(); ++i) sum[0] += s.preds[i];
        weight[0] += static_cast<double>(s.preds.size());
    }
    double compute() const { return sum[0] / weight[0]; }
};

} // namespace metric_list_test
using namespace metric_list_test;

namespace {

metric_list of_both() {
    metric_list all;
    all.add("spread", every_kind{.buckets = 3}).add("mean", plain_mean{});
    return all;
}

void show(metric_list& to, std::initializer_list<float> preds,
          std::initializer_list<std::int64_t> target) {
    to.update(
        {.preds = {preds.begin(), {preds.size()}}, .target = {target.begin(), {target.size()}}});
}

} // namespace

TEST_CASE("metric lists: what ranks pack is merged as if one had seen all") {
    auto whole = of_both(), first = of_both(), second = of_both(), idle = of_both();
    show(whole, {1, 5}, {0, 1});
    show(whole, {-2}, {2});
    show(first, {1, 5}, {0, 1});
    show(second, {-2}, {2});

    auto merged = of_both();
    merged.add(first.pack());
    merged.add(idle.pack()); // a rank without data
    merged.add(second.pack());
    CHECK(merged.compute() == whole.compute());
    CHECK(merged.updates() == 2);
    CHECK(merged.compute()[0] == [] {
        score wanted(std::vector<double>{1, 4, 5, -2, 3});
        wanted.name = "spread";
        return wanted;
    }());
    CHECK(merged.has_rows());
}

TEST_CASE("metric lists: reduced over ranks and gathered in order they are the same") {
    auto first = of_both(), second = of_both(), whole = of_both(), merged = of_both();
    show(first, {1, 5}, {0, 1});
    show(second, {-2}, {2});
    show(whole, {1, 5}, {0, 1});
    show(whole, {-2}, {2});
    auto a = first.pack();
    const auto b = second.pack();
    REQUIRE(a.sums.size() == b.sums.size());
    REQUIRE(a.maxima.size() == b.maxima.size());
    for (std::size_t i = 0; i < a.sums.size(); ++i) a.sums[i] += b.sums[i];
    for (std::size_t i = 0; i < a.maxima.size(); ++i)
        a.maxima[i] = std::max(a.maxima[i], b.maxima[i]);
    const auto rows = a.rows;
    a.rows.clear();
    merged.add(a);
    merged.add_rows(rows);
    merged.add_rows(b.rows);
    CHECK(merged.compute() == whole.compute());
}

TEST_CASE("metric lists: a mark takes back what came after it") {
    auto list = of_both();
    show(list, {1}, {0});
    const auto before = list.compute();
    list_mark at;
    list.mark(at);
    show(list, {7, 8}, {1, 1});
    CHECK(list.compute() != before);
    list.go_back(at);
    CHECK(list.compute() == before);
    CHECK(list.updates() == 1);
    list.clear();
    CHECK(list.updates() == 0);
    CHECK(list.compute()[0].values[2] == -std::numeric_limits<double>::infinity());
}

TEST_CASE("metric lists: a checkpoint has all of it, and tells other metrics") {
    auto list = of_both();
    show(list, {1, 2, 3}, {0, 1, 2});
    const auto saved = list.save();
    auto other = of_both();
    show(other, {9}, {0});
    other.restore(saved);
    CHECK(other.compute() == list.compute());
    CHECK(other.updates() == 1);

    metric_list fewer;
    fewer.add("spread", every_kind{.buckets = 2});
    CHECK_THROWS_MATCHES(fewer.restore(saved), error,
                         MessageMatches(ContainsSubstring("buckets 3")));
    for (std::size_t cut = 0; cut < saved.size(); ++cut)
        CHECK_THROWS_AS(of_both().restore(byte_span(saved).first(cut)), error);
}

TEST_CASE("metric lists: names, options and layouts") {
    auto list = of_both();
    CHECK(list.layout() ==
          std::vector<std::pair<std::string, std::string>>{
              {"spread", "spread: buckets 3; counts sum[3]; total sum[1]; most max[1]; least "
                         "min[1]; seen rows[2]"},
              {"mean", "plain_mean: twice false, power 1.5; sum sum[1]; weight sum[1]"}});
    CHECK_THROWS_MATCHES(list.add("mean", plain_mean{}), error,
                         MessageMatches(ContainsSubstring("\"mean\"")));
    for (const auto* odd : {"", "a\nb"}) // no name of a column
        CHECK_THROWS_AS(list.add(odd, plain_mean{}), error);
    CHECK_THROWS_MATCHES(list.add("none", every_kind{.buckets = 0}), error,
                         MessageMatches(ContainsSubstring("no buckets")));
    CHECK_THROWS_MATCHES(list.add("huge", every_kind{.buckets = 1 << 30}), error,
                         MessageMatches(ContainsSubstring("MiB")));
    const float one[] = {1.0f};
    CHECK_THROWS_MATCHES(list.update("maen", {.preds = {one, {1}}}), error,
                         MessageMatches(ContainsSubstring("maen")));
    const float two[] = {1.0f, 2.0f};
    CHECK_THROWS_MATCHES(list.update({.preds = {one, {1}}, .target = {two, {2}}}), error,
                         MessageMatches(ContainsSubstring("metric \"spread\"")));
    list.update("mean", {.preds = {two, {2}}, .target = {}});
    CHECK(list.compute()[1].values == std::vector<double>{1.5});
}

namespace {
/// Says that it has a matrix, and gives fewer numbers.
struct short_matrix {
    summed cells{};
    void update(const samples&) {}
    [[nodiscard]] score compute() const { return {2, 2, {1, 2, 3}}; }
};
} // namespace

TEST_CASE("metric lists: a score that does not fill its shape is refused") {
    metric_list list;
    list.add("matrix", short_matrix{});
    CHECK_THROWS_MATCHES(list.compute(), error,
                         MessageMatches(ContainsSubstring("3 numbers for a shape of 4") &&
                                        ContainsSubstring("\"matrix\"")));
}

TEST_CASE("metric lists: rows that are no rows") {
    auto list = of_both();
    show(list, {1}, {0});
    auto rows = list.pack().rows;
    for (std::size_t cut = 0; cut < rows.size(); ++cut)
        CHECK_THROWS_AS(of_both().add_rows(byte_span(rows).first(cut)), error);
    rows.push_back(std::byte{0});
    CHECK_THROWS_AS(of_both().add_rows(rows), error);
    auto packed = list.pack();
    packed.sums.push_back(0);
    CHECK_THROWS_AS(of_both().add(packed), error);
}

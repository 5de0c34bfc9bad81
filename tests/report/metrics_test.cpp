// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/report/metrics.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>

using namespace skein;
using namespace skein::report;

namespace {

/// The two all-reduces, done here.
packed_metrics reduce(const std::vector<metric_set>& ranks) {
    packed_metrics merged = ranks[0].pack(0);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
        const auto other = ranks[r].pack(static_cast<int>(r));
        REQUIRE(other.sums.size() == merged.sums.size());
        REQUIRE(other.maxima.size() == merged.maxima.size());
        for (std::size_t i = 0; i < merged.sums.size(); ++i) merged.sums[i] += other.sums[i];
        for (std::size_t i = 0; i < merged.maxima.size(); ++i)
            merged.maxima[i] = std::max(merged.maxima[i], other.maxima[i]);
    }
    return merged;
}

} // namespace

TEST_CASE("the names of an evaluation are said as those of all errors about names") {
    const auto named = [](const char* name) {
        skein::report::metric_value value;
        value.name = name;
        return value;
    };
    CHECK(skein::report::names_of({}) == "there are none");
    CHECK(skein::report::names_of({named("val_loss"), named("a\x1b[2J")}) ==
          R"(there are: "val_loss", "a?[2J")");
}

TEST_CASE("a set that takes a name for itself refuses it at the first report") {
    static constexpr std::string_view taken[] = {"loss", "stop"};
    metric_set m{taken};
    m.mean("accuracy", 1.0);
    for (const auto name : taken) {
        try {
            m.mean(name, 1.0);
            FAIL("accepted");
        } catch (const skein::error& e) {
            CHECK(e.code() == skein::errc::usage);
            CHECK(std::string(e.what()).find("'" + std::string(name) + "' is taken") !=
                  std::string::npos);
        }
    }
    CHECK(m.size() == 1);
}

TEST_CASE("names of metrics are UTF-8 on one line, whatever else is in them") {
    metric_set m;
    const std::string names[] = {
        "top 5/accuracy", "a,b",       "say \"x\"", "Treffer f\u00fcr \u00c4pfel", "\u635f\u5931",
        "=1+1",           "{a:b}[0]%", "'",         std::string(300, 'm')};
    for (const auto& name : names) m.mean(name, 1.0);
    const auto read = metric_set::with_layout(m.layout());
    CHECK(read.layout_hash() == m.layout_hash());
    for (const auto* odd : {"", "a\nb", "a\tb", "\x1b[31m", "\xff", "\xc3", "\xc2\x85"})
        CHECK_THROWS_AS(m.sum(odd, 1.0), skein::error);
    CHECK(m.size() == std::size(names));
    CHECK_THROWS_WITH(m.sum("a\nb", 1.0), Catch::Matchers::ContainsSubstring(R"('a\nb')"));
}

TEST_CASE("a set made from another's layout merges with it and changes nothing") {
    metric_set full;
    full.mean("a", 3.0, 2.0).sum("b", 5.0).max("c", -7.0).min("d", 4.0).last("e", 1.0);
    const auto none = metric_set::with_layout(full.layout());
    CHECK(none.layout_hash() == full.layout_hash());
    CHECK(none.values().empty());
    auto one = full.pack(0), other = none.pack(1);
    for (std::size_t i = 0; i < one.sums.size(); ++i) one.sums[i] += other.sums[i];
    for (std::size_t i = 0; i < one.maxima.size(); ++i)
        one.maxima[i] = std::max(one.maxima[i], other.maxima[i]);
    CHECK(full.unpack(one).value() == full.values());
    metric_set joined;
    joined.last("lr", 0.5).append(full);
    CHECK(joined.values()[2].value == 5.0);
}

TEST_CASE("metrics are merged over ranks by their kind") {
    std::vector<metric_set> ranks(3);
    ranks[0]
        .mean("loss", 2.0, 10)
        .sum("tokens", 100)
        .max("peak", 7)
        .min("fastest", 3)
        .last("lr", 0.1);
    ranks[1]
        .mean("loss", 5.0, 20)
        .sum("tokens", 50)
        .max("peak", 9)
        .min("fastest", 2)
        .last("lr", 0.2);
    ranks[2]
        .mean("loss", 1.0, 0)
        .sum("tokens", 1)
        .max("peak", -1)
        .min("fastest", 8)
        .last("lr", 0.3);
    const std::vector<metric_value> wanted{
        {"loss", 4.0}, {"tokens", 151.0}, {"peak", 9.0}, {"fastest", 2.0}, {"lr", 0.1}};
    const auto merged = reduce(ranks);
    for (auto& rank : ranks) CHECK(rank.unpack(merged).value() == wanted);
}

TEST_CASE("values of several steps are put together before they are merged") {
    metric_set m;
    m.mean("loss", 1.0, 1)
        .mean("loss", 4.0, 2)
        .sum("n", 1)
        .sum("n", 2)
        .max("x", 1)
        .max("x", -5)
        .min("y", 1)
        .min("y", -5);
    m.last("lr", 1).last("lr", 2);
    const std::vector<metric_value> wanted{
        {"loss", 3.0}, {"n", 3.0}, {"x", 1.0}, {"y", -5.0}, {"lr", 2.0}};
    CHECK(m.values() == wanted);
    CHECK(*find_metric(m.values(), "x") == 1.0);
    CHECK(find_metric(m.values(), "z") == nullptr);
    m.clear();
    CHECK(m.empty());
}

TEST_CASE("ranks that report different metrics meet in the same collective and are told") {
    std::vector<metric_set> ranks(2);
    ranks[0].mean("loss", 1.0);
    ranks[1].mean("loss", 1.0).sum("tokens", 3.0);
    const auto merged = reduce(ranks);
    for (auto& rank : ranks) {
        const auto seen = rank.unpack(merged);
        REQUIRE_FALSE(seen);
        CHECK(seen.error().code() == errc::mismatch);
    }
    std::vector<metric_set> kinds(2);
    kinds[0].mean("loss", 1.0);
    kinds[1].sum("loss", 1.0);
    CHECK_FALSE(kinds[0].unpack(reduce(kinds)));
    std::vector<metric_set> order(2);
    order[0].sum("a", 1.0).sum("b", 1.0);
    order[1].sum("b", 1.0).sum("a", 1.0);
    CHECK_FALSE(order[0].unpack(reduce(order)));
}

TEST_CASE(
    "what ranks report under different names is joined, and counts for those that report it") {
    std::vector<metric_set> ranks(3);
    ranks[0].sum("seen", 2.0);
    ranks[1].mean("even", 4.0, 3.0).last("rate", 0.5).sum("seen", 5.0);
    ranks[2].max("peak", -3.0).last("rate", 0.25);
    const std::vector<std::string> layouts{ranks[0].layout(), ranks[1].layout(), ranks[2].layout()};
    const auto all = metric_set::join(layouts).value();
    CHECK(all.names() == "seen (sum), even (mean), rate (last), peak (max)");
    std::vector<metric_set> rows(3);
    for (std::size_t r = 0; r < 3; ++r) {
        CHECK(all.covers(ranks[r]));
        rows[r] = metric_set().append(all).append(ranks[r]);
    }
    auto merged = reduce(rows);
    std::vector<double> lasts(1, 0.0);
    for (int r = 0; r < 3; ++r) { // of the first rank that has one
        const auto mine = rows[static_cast<std::size_t>(r)].lasts_of(merged, r);
        REQUIRE(mine.size() == 1);
        lasts[0] += mine[0];
    }
    rows[0].put_lasts(merged, lasts);
    const std::vector<metric_value> wanted{
        {"seen", 7.0}, {"even", 4.0}, {"rate", 0.5}, {"peak", -3.0}};
    for (auto& row : rows) CHECK(row.unpack(merged).value() == wanted);
    CHECK_FALSE(ranks[0].covers(ranks[1]));
    auto known = metric_set().append(ranks[0]).know(all);
    CHECK(known.covers(all));
    CHECK(known.values().size() == 1); // the others count nothing
}

TEST_CASE("one name by two kinds is refused with both sides") {
    metric_set a, b;
    a.sum("x", 1.0);
    b.last("y", 1.0).mean("x", 1.0);
    const std::vector<std::string> layouts{a.layout(), b.layout()};
    const auto joined = metric_set::join(layouts);
    REQUIRE_FALSE(joined);
    CHECK(joined.error().code() == errc::mismatch);
    CHECK(joined.error().text() == "rank 1 reported 'x' as a mean, rank 0 as a sum");
    CHECK_THROWS_AS(a.mean("x", 1.0), error); // in one rank: an error too, no end of the process
}

TEST_CASE("a mean without a weight of its own counts the samples of the batch in hand") {
    metric_set m;
    m.mean("before", 2.0);
    m.weigh(4.0);
    m.mean("a", 1.0).add(metric_kind::mean, "b", 1.0).mean("c", 1.0, 1.0);
    m.weigh(1.0);
    m.mean("a", 6.0).add(metric_kind::mean, "b", 6.0).mean("c", 6.0, 1.0);
    const std::vector<metric_value> wanted{{"before", 2.0}, {"a", 2.0}, {"b", 2.0}, {"c", 3.5}};
    CHECK(m.values() == wanted);
}

TEST_CASE("a NaN is not hidden by later good values") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    metric_set m;
    m.max("x", nan).max("x", 1.0).min("y", 1.0).min("y", nan).mean("loss", nan).mean("loss", 1.0);
    for (auto& v : m.values()) CHECK(std::isnan(v.value));
}

TEST_CASE("a mean without weight is not a number rather than a made-up zero") {
    metric_set m;
    m.mean("loss", 3.0, 0.0);
    CHECK(std::isnan(m.values()[0].value));
}

TEST_CASE("many metrics still fit in two collectives") {
    std::vector<metric_set> ranks(2);
    for (int i = 0; i < 200; ++i)
        for (auto& rank : ranks)
            rank.sum("s" + std::to_string(i), i).max("m" + std::to_string(i), i);
    const auto out = ranks[1].unpack(reduce(ranks)).value();
    REQUIRE(out.size() == 400);
    CHECK(out[398].value == 398.0);
    CHECK(out[399].value == 199.0);
}

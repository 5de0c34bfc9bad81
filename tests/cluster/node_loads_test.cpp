// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/node_loads.hpp>
#include <skein/core/error.hpp>

#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

#include <fmt/format.h>

namespace node_loads_test {

using namespace skein;
using cluster::detail::node_loads;

constexpr std::int64_t start = 1'800'000'000;

cluster::node_load busy(double cpu) {
    cluster::node_load out;
    out.load.cpu = cpu;
    return out;
}

metric_family family_of(std::string name, std::vector<metric_label> labels = {}) {
    metric_family out;
    out.name = std::move(name);
    out.help = "a text";
    metric_series one;
    one.labels = std::move(labels);
    out.series.push_back(std::move(one));
    return out;
}

TEST_CASE("the newest word of each node and its past are kept, also when it is gone", "[cluster]") {
    node_loads loads;
    loads.came("n1");
    loads.told("n1", busy(0.25), start);
    loads.told("n1", busy(0.5), start + 1);
    loads.came("n2");
    auto said = busy(1);
    said.numbers = {family_of("skein_agent_starts")};
    loads.told("n2", said, start + 1);
    CHECK(loads.changes() == 3);
    const auto usage = loads.usage();
    REQUIRE(usage.size() == 2);
    CHECK(usage.at("n1").load.cpu == 0.5);
    CHECK(usage.at("n1").at == start + 1);
    CHECK(usage.at("n1").number == 2);
    CHECK(usage.at("n1").is_there);
    CHECK(loads.since("n1", start, 100).points.size() == 1);
    CHECK(loads.numbers().at("n2").front().name == "skein_agent_starts");
    loads.went("n2");
    CHECK_FALSE(loads.usage().at("n2").is_there);
    CHECK_FALSE(loads.numbers().contains("n2"));
    CHECK(loads.since("n2", 0, 100).points.size() == 1);
    CHECK_THROWS_AS(loads.since("n3", 0, 100), error);
}

TEST_CASE("a new node takes the place of the one that has been gone for longest", "[cluster]") {
    node_loads loads;
    const auto name = [](std::size_t i) { return fmt::format("n{}", i); };
    for (std::size_t i = 0; i < node_loads::most_nodes; ++i) {
        loads.came(name(i));
        loads.told(name(i), busy(0), start + static_cast<std::int64_t>(i));
    }
    loads.told("new", busy(0), start + 2000); // all are there: nothing is kept of it
    CHECK_FALSE(loads.usage().contains("new"));
    loads.went(name(7));
    loads.went(name(5));
    loads.told("new", busy(0), start + 2000);
    CHECK(loads.usage().contains("new"));
    CHECK_FALSE(loads.usage().contains(name(5)));
    CHECK(loads.usage().contains(name(7)));
    loads.told("newer", busy(0), start + 24 * 3600 + 100); // the last day of that one is over
    CHECK_FALSE(loads.usage().contains(name(7)));
    CHECK(loads.usage().contains("new"));
    CHECK(loads.usage().size() == node_loads::most_nodes);
}

TEST_CASE("numbers from outside that nobody could take are left out", "[cluster]") {
    using cluster::detail::checked_numbers;
    std::vector<metric_family> told{family_of("good", {{"kind", "a"}}), family_of("no good"),
                                    family_of("forged", {{"node", "n7"}})};
    told.push_back(family_of("half", {{"kind", "a"}}));
    told.back().series.push_back(told[2].series.front());
    told.push_back(family_of("histogram"));
    told.back().kind = series_kind::histogram; // without counts
    const auto kept = checked_numbers(told);
    REQUIRE(kept.size() == 2);
    CHECK(kept[0].name == "good");
    CHECK(kept[0].help.empty());
    CHECK(kept[1].name == "half");
    CHECK(kept[1].series.size() == 1);
    std::vector<metric_family> many(cluster::most_told_series + 10, family_of("good"));
    CHECK(checked_numbers(many).size() == cluster::most_told_series);
}

} // namespace node_loads_test

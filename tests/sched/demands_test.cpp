// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/sched/demands.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::sched;

namespace {

resources need_of(std::string_view text) { return parse_resources(text).value(); }

} // namespace

TEST_CASE("equal demands have one number, others another", "[sched][demands]") {
    demand_table table;
    CHECK(table.number(0).value() == table.number({}, {}).value());
    CHECK(table.number(1).value() == table.number(need_of("cpu=1"), {}).value());
    CHECK(table.number(3).value() == table.number(need_of("cpu=3"), {}).value());
    const auto one = table.number(need_of("cpu=1,gpu=0.5"), "zone=a").value();
    CHECK(table.number(need_of("gpu=0.5,cpu=1"), "zone=a").value() == one);
    CHECK(table.number(need_of("cpu=1,gpu=0.5"), "zone=b").value() != one);
    CHECK(table.number(need_of("cpu=1,gpu=0.5"), "zone=a", true).value() != one);
    CHECK(table.number_on(one, "zone=a").value() == one);
    CHECK(table.at(table.number_on(one, "zone=b").value()).label == "zone=b");
    CHECK(table.text(one) == "cpu=1,gpu=0.5@zone=a");
    CHECK(table.number_of_text(table.text(one)).value() == one);
    CHECK(table.number_of_text(table.text(one, spread_label)).value() ==
          table.number(need_of("cpu=1,gpu=0.5"), spread_label).value());
}

TEST_CASE("a demand of whole cpus alone is simple, and any worker with so many may have it",
          "[sched][demands]") {
    demand_table table;
    const auto seen = [&](std::string_view need, std::string_view label = {}) {
        return table.at(table.number(need_of(need), label).value());
    };
    CHECK(seen("cpu=2").is_simple);
    CHECK(seen("cpu=2").cpus == 2);
    CHECK_FALSE(seen("cpu=0.5").is_simple);
    CHECK(seen("cpu=0.5").cpus == 1);
    CHECK(seen("cpu=0.5").only_cpus);
    CHECK_FALSE(seen("gpu=1").only_cpus);
    CHECK(seen("gpu=1").cpus == 1);
    CHECK(seen("cpu=2", spread_label).is_anywhere());
    CHECK_FALSE(seen("cpu=2", "zone=a").is_anywhere());
}

TEST_CASE("a place is read as it is written, and is no node's label", "[sched][demands]") {
    using kind = place::kind;
    const actor_id sent({7, 12});
    const std::pair<place, const char*> all[] = {
        {{}, ""},
        {{kind::anywhere}, "@*"},
        {{kind::nodes, "zone=a"}, "zone=a"},
        {{kind::spread}, "spread@"},
        {{kind::group, {}, 3}, "@3"},
        {{kind::group, {}, 7, 12}, "@7/12"},
        {{kind::group, {}, 3, 0, true}, "@3/0+"},
        {{kind::group, {}, 3, -1, true}, "@3+"},
        {{kind::named_group, "web"}, "@=/web"},
        {{kind::named_group, "we/b", 0, 2}, "@=2/we/b"},
        {{kind::named_group, "web", 0, 2, true}, "@=2+/web"},
        {{kind::named_group, "web", 0, -1, true}, "@=+/web"},
        {{kind::actor, {}, 0, -1, false, sent}, "@!7.12"},
    };
    for (const auto& [value, text] : all) {
        CHECK(value.to_text() == text);
        CHECK(place::from_text(text) == value);
    }
    for (const auto* bad :
         {"@",     "@0",      "@3/",     "@3/-1",  "@3x",       "@3++",     "@3+/0", "@-3", "@ 3",
          "@=",    "@=web",   "@=x/web", "@=2web", "@=2+3/web", "@=+2/web", "@!",    "@!7", "@!7.",
          "@!0.0", "@!7.12x", "@!7.12+", "@7.12",  "@**",       "spread@x", "a@b"})
        CHECK(place::from_text(bad) == place{kind::nodes, bad});

    std::uint64_t group = 0;
    int bundle = 0;
    CHECK((parse_group_label(group_label(3, -1), group, bundle) && group == 3 && bundle == -1));
    CHECK((parse_group_label(group_label(7, 12), group, bundle) && group == 7 && bundle == 12));
    for (const auto* text :
         {"", "@", "@0", "@3/", "@3/-1", "@3x", "@3+", "zone=a", "spread@", "@*"})
        CHECK_FALSE(parse_group_label(text, group, bundle));
    CHECK(where_labelled("") == constraint());
    CHECK(where_labelled(std::string(spread_label)) == constraint::spread());
    CHECK(where_labelled("zone=a") == constraint::labelled("zone=a"));
    demand_table table;
    CHECK_FALSE(table.number(need_of("cpu=1"), "a@b"));
    CHECK_FALSE(table.number(need_of("cpu=1"), "@*"));
}

TEST_CASE("the numbers of a group's demands are given again when it is forgotten",
          "[sched][demands]") {
    demand_table table;
    const auto inside = table.number(need_of("cpu=1"), group_label(3, 0) + "+").value();
    CHECK(table.at(inside).captures);
    CHECK(table.at(inside).group == 3);
    CHECK(table.at(inside).bundle == 0);
    const auto other = table.number(need_of("cpu=1"), group_label(4, -1)).value();
    auto all = std::vector{inside};
    all.clear();
    table.for_each_in_group(3, [&](auto number) { all.push_back(number); });
    CHECK(all == std::vector{inside});
    table.forget_group(3);
    CHECK(table.number(need_of("cpu=1"), "zone=a").value() == inside);
    CHECK(table.number(need_of("cpu=1"), group_label(4, -1)).value() == other);
}

TEST_CASE("so many different demands are enough", "[sched][demands]") {
    demand_table table;
    result<void> last;
    std::size_t made = 2; // nothing, and one cpu
    for (resources need; last && made <= demand_table::most; ++made) {
        need.memory = made;
        if (const auto number = table.number(need, {}); !number) last = number.error();
    }
    REQUIRE_FALSE(last);
    CHECK(last.error().code() == errc::exhausted);
    CHECK(made == demand_table::most + 1);
}

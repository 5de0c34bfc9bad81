// SPDX-License-Identifier: Apache-2.0
#include "cluster/lease_support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace lease_table_test {

using namespace lease_test;
using Catch::Matchers::ContainsSubstring;
using parts::lease_state;

TEST_CASE("a lease is granted while there is room, and others wait for its end",
          "[cluster][leases]") {
    world w;
    w.node(n1, "cpu=1");
    w.want(app, 1, "cpu=1");
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    CHECK(w.head.started == names{{app, 1}});
    CHECK(w.state(app, 2) == lease_state::waits);
    w.leases.end(*w.leases.find({app, 1}), true, "exited with 0");
    CHECK(w.leases.find({app, 1}) == nullptr);
    const auto& said = w.head.last<lease_ended>();
    CHECK(said.lease == 1);
    CHECK(said.how == "exited with 0");
    w.leases.pump();
    CHECK(w.head.started == names{{app, 1}, {app, 2}});
}

TEST_CASE("what no node could hold, or nobody could start, is said", "[cluster][leases]") {
    world w;
    w.node(n1, "cpu=1");
    w.want(app, 1, "cpu=4");
    w.leases.pump();
    CHECK_THAT(w.head.last<lease_waits>().why, ContainsSubstring("cpu=4"));
    want_lease rank{2, "cpu=1", {}, false, {}, {}};
    rank.rank.place = {"SKEIN_RANK=0"}; // without arguments
    w.leases.want(w.leases.holder(app), rank);
    CHECK_THAT(w.head.last<lease_ended>().how, ContainsSubstring("no process could be started"));
    w.want(app, 3, "cpu=?");
    CHECK(w.head.last<lease_ended>().lease == 3);
    CHECK(w.leases.find({app, 3}) == nullptr);
}

TEST_CASE("room of a lease that is given back stays taken until its process has ended",
          "[cluster][leases]") {
    world w;
    w.node(n1, "cpu=1");
    w.want(app, 1, "cpu=1");
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    w.leases.give_back(w.leases.holder(app), 1);
    w.leases.give_back(w.leases.holder(app), 1); // once more
    CHECK(w.head.stopped == names{{app, 1}});
    w.leases.pump();
    CHECK(w.state(app, 2) == lease_state::waits);
    w.leases.give_back(w.leases.holder(app), 2); // nothing of it runs
    CHECK(w.leases.find({app, 2}) == nullptr);
}

TEST_CASE("a lease that was asked back comes, or is kept and may be asked for again",
          "[cluster][leases]") {
    world w;
    w.node(n1, "cpu=1");
    w.want(app, 1, "cpu=1");
    w.leases.pump();
    w.pass(1s);
    auto& l = *w.leases.find({app, 1});
    w.head.away.insert(app);
    w.leases.recall(l, "others wait");
    CHECK_FALSE(w.leases.is_coming(l)); // nobody was there to be asked
    w.head.away.clear();
    w.leases.recall(l, "others wait");
    CHECK(w.leases.is_coming(l));
    CHECK(w.head.last<lease_recalled>().why == "others wait");
    w.leases.answered(w.leases.holder(app), 1, leave_word::stays, {});
    CHECK_FALSE(w.leases.is_coming(l));
    CHECK(l.keep_until > w.loop.now());
}

TEST_CASE("leases end with their node, and with a driver that does not come back",
          "[cluster][leases]") {
    world w;
    auto& node = w.node(n1, "cpu=2");
    w.node(n2, "cpu=1");
    w.want(app, 1, "cpu=2");
    w.want(other, 1, "cpu=1");
    w.want(other, 2, "cpu=1");
    w.leases.pump();
    w.leases.remove_node(node, "node n1 was lost");
    CHECK(w.head.last<lease_ended>().how == "node n1 was lost");
    CHECK(w.leases.find({app, 1}) == nullptr);
    auto& d = w.leases.holder(other);
    d.ending = true;
    w.leases.leave(d);
    CHECK(w.leases.find({other, 2}) == nullptr); // it waited
    CHECK(w.state(other, 1) == lease_state::stopping);
    CHECK(w.head.over.empty());
    w.leases.end(*w.leases.find({other, 1}), true, "exited with 0");
    CHECK(w.head.over == std::vector<std::uint64_t>{other});
    CHECK_FALSE(w.leases.holders().contains(other));
}

TEST_CASE("the end of an attempt's lease is told with whether it was ordered",
          "[cluster][leases]") {
    world w;
    w.node(n1, "cpu=1");
    w.leases.holder(app).attempt_of = "job_1";
    w.want(app, 1, "cpu=1");
    w.leases.pump();
    w.leases.find({app, 1})->is_ordered = true;
    w.leases.end(*w.leases.find({app, 1}), true, "exited with 1");
    CHECK(w.head.entries_ended == std::vector<std::string>{"job_1: exited with 1, ordered"});
    CHECK(w.head.over == std::vector<std::uint64_t>{app});
}

TEST_CASE("leases in a placement group take its room, and end the group with them",
          "[cluster][leases]") {
    world w;
    w.node(n1, "cpu=1");
    w.node(n2, "cpu=1");
    auto& d = w.leases.holder(app);
    w.leases.want_group(
        d, {7, static_cast<std::uint8_t>(sched::group_strategy::spread), {"cpu=1", "cpu=1"}, {}});
    w.leases.pump();
    REQUIRE(w.head.last<group_placed>().bundles.size() == 2);
    w.want(other, 1, "cpu=1");
    w.want(app, 1, "cpu=1", "@7/1");
    w.leases.pump();
    CHECK(w.head.started == names{{app, 1}});
    w.leases.drop_group(d, 7);
    CHECK(d.groups.size() == 1); // as long as its lease
    w.want(app, 2, "cpu=1", "@7");
    CHECK_THAT(w.head.last<lease_ended>().how, ContainsSubstring("is not there (any more)"));
    w.leases.end(*w.leases.find({app, 1}), true, "exited with 0");
    CHECK(d.groups.empty());
    w.leases.pump();
    CHECK(w.head.started == names{{app, 1}, {other, 1}});
}

TEST_CASE("a table that begins anew takes over what nodes hold, and groups where they were",
          "[cluster][leases]") {
    world w;
    auto& node = w.node(n1, "cpu=2");
    auto& d = w.leases.holder(app);
    w.leases.want_group(d, {7, 0, {"cpu=1"}, {{n1, 0}}});
    w.want(app, 1, "cpu=1", "@7/0"); // its group is not there yet
    auto& l = *w.leases.find({app, 1});
    held_lease held;
    held.lease = {app, 1};
    const auto demand = *sched::parse_resources("cpu=1");
    CHECK(w.leases.take_over(node, held, demand, &l, lease_state::granted));
    w.leases.take_groups_over();
    CHECK(d.groups.at(7).id);
    CHECK(w.head.stopped.empty());
    held.lease = {other, 5}; // of a driver that nobody knows
    CHECK(w.leases.take_over(node, held, demand, nullptr, lease_state::stopping));
    CHECK(w.state(other, 5) == lease_state::stopping);
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    CHECK(w.state(app, 2) == lease_state::waits); // all of its room is taken
}

} // namespace lease_table_test

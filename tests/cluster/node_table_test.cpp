// SPDX-License-Identifier: Apache-2.0
#include "cluster/node_support.hpp"

#include <skein/cluster/tools.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace node_table_test {

using namespace lease_test;
using Catch::Matchers::ContainsSubstring;
using parts::lease_state;

TEST_CASE("nodes have names of their own", "[cluster][nodes]") {
    node_world w;
    CHECK(w.join(n1, "").name() == "h");
    CHECK(w.join(n2, "").name() == "h-2");
    CHECK_THROWS_WITH(w.join(73, "h-2"), ContainsSubstring("is in the cluster already"));
    w.silent.insert(n2);
    CHECK(w.join(73, "h-2").incarnation == 73); // it was started again
    CHECK(w.lost == std::vector<std::string>{"another node has come under its name"});
    CHECK(w.nodes.find(n2) == nullptr);
    CHECK(w.nodes.size().cpus == 4);
    node_hello bad;
    bad.labels = {"zone=a", "zone=a"};
    CHECK_THROWS_WITH(parts::check_words(bad), ContainsSubstring("is there twice"));
}

TEST_CASE("a silent node gets nothing new, and is given up after a while", "[cluster][nodes]") {
    node_world w;
    const auto& n = w.join(n1, "n1");
    w.look_for(2);
    w.silent.insert(n1);
    w.look_for(1);
    CHECK(n.silence.is_there());
    CHECK_THAT(w.nodes.silence_text(n), ContainsSubstring("node n1 is silent for"));
    CHECK(w.nodes.status_of(n).suspect);
    w.want(app, 1, "cpu=1");
    w.leases.pump();
    CHECK(w.state(app, 1) == lease_state::waits);
    w.silent.clear(); // it is believed when it comes back
    w.look_for(1);
    w.leases.pump();
    CHECK(w.state(app, 1) == lease_state::granted);
    w.silent.insert(n1);
    w.look_for(29);
    REQUIRE(w.lost.size() == 1);
    CHECK_THAT(w.lost[0], ContainsSubstring("it was silent for"));
    CHECK_THAT(w.lost[0], ContainsSubstring("it may run"));
    CHECK(w.leases.find({app, 1}) == nullptr);
}

TEST_CASE("a node that drains is emptied, and may take workers again", "[cluster][nodes]") {
    node_world w;
    w.join(n1, "n1");
    w.want(app, 1, "cpu=1");
    w.leases.pump();
    CHECK(w.drain("n1", true).workers == 1);
    CHECK(w.head.last<lease_recalled>().why == "node n1 is drained");
    CHECK(w.told == std::vector<std::pair<std::uint64_t, bool>>{{n1, true}});
    CHECK(w.nodes.size().nodes == 0);
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    CHECK(w.state(app, 2) == lease_state::waits);
    CHECK_THROWS_WITH(w.drain("n1", true, true), ContainsSubstring("it cannot be forgotten"));
    CHECK_THROWS_WITH(w.drain("n9", true), ContainsSubstring("no node is called"));
    (void)w.drain("n1", false);
    CHECK(w.head.last<lease_recalled>().withdrawn);
    CHECK(w.state(app, 2) == lease_state::granted);
}

TEST_CASE("a missing node is remembered with whether it drains", "[cluster][nodes]") {
    node_world w;
    auto& n = w.join(n1, "n1");
    w.nodes.remove(n, "its agent has died", false);
    CHECK(w.drain("n1", true).missing);
    CHECK(w.join(n2, "n1").room->draining);
    w.nodes.remove(*w.nodes.find(n2), "its agent has died", false);
    (void)w.drain("n1", true, true);
    CHECK_FALSE(w.join(73, "n1").room->draining);
}

TEST_CASE("a node that cannot start anything rests", "[cluster][nodes]") {
    node_world w;
    auto& n = w.join(n1, "n1");
    const auto before = w.nodes.changes();
    w.nodes.failed(n, "its disk is full");
    CHECK(w.nodes.changes() == before + 1);
    CHECK(w.nodes.status_of(n).rests_for == "its disk is full");
    w.want(app, 1, "cpu=1");
    w.leases.pump();
    CHECK(w.state(app, 1) == lease_state::waits);
    w.look_for(2);
    w.leases.pump();
    CHECK(w.state(app, 1) == lease_state::granted);
    w.nodes.failed(n, "its disk is full");
    w.nodes.worked(n);
    CHECK_FALSE(n.rest.is_on());
}

} // namespace node_table_test

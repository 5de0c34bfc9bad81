// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/log_lines.hpp>
#include <tests/support/sim_nodes.hpp>
#include <tests/support/sim_stranger.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cstdint>
#include <string>
#include <string_view>

using namespace skein;
using namespace std::chrono_literals;

namespace {

/// Runs body(cluster) with a head and no driver.
template <class Body>
void with_head(std::uint64_t seed, Body body) {
    test::in_world_of_nodes(seed,
                            [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
                                c.start_head();
                                auto work = body(c);
                                co_await work;
                            });
}

int never_called() { return 0; }
int twice(int x) { return 2 * x; }
/// Gives the pid of the process in which it has run to its end.
task<std::int64_t> pid_after(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return runtime_context().pid;
}

/// Says goodbye to those that it has not answered.
task<void> ending_head(net::link::handle) { co_await sleep_for(100ms); }

} // namespace

TEST_CASE("a node says what it offers and gets its name", "[cluster][agent]") {
    with_head(1, [](test::sim_nodes& c) -> task<void> {
        auto& n = c.add_node(3);
        co_await sleep_for(1s);
        CHECK(n.agent->role->is_joined());
        auto how = c.agent_defaults();
        how.offers = sched::parse_resources("cpu=1.5,ssd=2").value();
        how.labels = {"zone=a"};
        std::string called;
        how.on_joined = [&called](const std::string& name) { called = name; };
        c.add_node(9); // the name of its host is free
        auto killed = c.kill_agent(c.at(1));
        co_await killed;
        c.at(1).host = "n1"; // two on one host
        c.start_agent(c.at(1), std::move(how));
        co_await sleep_for(1s);
        CHECK(called == "n1-2");
        const auto s = c.head().status();
        REQUIRE(s.nodes.size() == 2);
        CHECK(s.nodes[0].resources == "cpu=3,memory=8GiB");
        CHECK(s.nodes[1].resources == "cpu=1.5,memory=8GiB,ssd=2");
        CHECK(s.nodes[1].labels == std::vector<std::string>{"zone=a"});
    });
}

TEST_CASE("an agent that is refused ends with the head's reason", "[cluster][agent]") {
    with_head(2, [](test::sim_nodes& c) -> task<void> {
        auto& n = c.add_node(1);
        co_await sleep_for(1s);
        auto taken = c.agent_defaults();
        taken.name = "n1";
        auto& other = c.add_node(1);
        auto killed = c.kill_agent(other);
        co_await killed;
        c.start_agent(other, std::move(taken));
        co_await sleep_for(1s);
        REQUIRE(other.agent->over);
        REQUIRE(other.agent->failure);
        CHECK(other.agent->failure->code() == errc::already_exists);
        CHECK(n.agent->role->is_joined());

        auto stranger = c.agent_defaults();
        stranger.secret = net::token::generate(c.loop().random());
        c.start_agent(other, std::move(stranger));
        co_await sleep_for(1s);
        REQUIRE(other.agent->over);
        CHECK(other.agent->failure->code() == errc::permission_denied);

        auto nonsense = c.agent_defaults();
        nonsense.offers = sched::parse_resources("gpu=0.5").value();
        c.start_agent(other, std::move(nonsense));
        co_await sleep_for(1s);
        REQUIRE(other.agent->over);
        CHECK(other.agent->failure->code() == errc::invalid_argument);
    });
}

TEST_CASE("names and labels that nobody could ask for or show are refused by the head",
          "[cluster][agent]") {
    with_head(6, [](test::sim_nodes& c) -> task<void> {
        auto& n = c.add_node(1);
        const auto refused = [](test::sim_nodes* of, test::sim_nodes::node* at, std::string name,
                                std::vector<std::string> labels) -> task<std::string> {
            auto killed = of->kill_agent(*at);
            co_await killed;
            auto how = of->agent_defaults();
            how.name = std::move(name);
            how.labels = std::move(labels);
            of->start_agent(*at, std::move(how));
            co_await sleep_for(1s);
            if (!at->agent->over || !at->agent->failure) co_return std::string("it was taken");
            CHECK(at->agent->failure->code() == errc::invalid_argument);
            CHECK_FALSE(at->agent->failure->hint().empty());
            co_return at->agent->failure->what();
        };
        struct wrong {
            std::string name;
            std::vector<std::string> labels;
            const char* said;
        };
        const std::vector<wrong> all{
            {"a\x1b[2J",
             {},
             "the name of the node \"a\\u001b[2J\" has a control character; choose"},
            {std::string(256, 'a'), {}, "has 256 bytes, at most 255 are taken"},
            {"a@b", {}, "has an @"},
            {"", {"zone=a", ""}, "label 2 of the node \"\" is empty"},
            {"", {"zone=\n"}, "has a control character; choose other --labels"},
            {"", {std::string(257, 'a')}, "label 1 of the node \"aaaa"},
            {"", {"zone=a", "disk", "zone=a"}, "label 3 of the node, zone=a, is there twice"},
            {"", {"node=n2"}, "nodes are asked for by their names"},
            {"", std::vector<std::string>(65, "x"), "a node with 65 labels, at most 64"},
        };
        for (const auto& one : all) {
            auto asking = refused(&c, &n, one.name, one.labels);
            const auto why = co_await asking;
            INFO(why);
            CHECK(why.find(one.said) != std::string::npos);
        }
        auto fine = refused(&c, &n, "n\xc3\xa4", {"zone=a", "zone=b"});
        const auto taken = co_await fine;
        CHECK(taken == "it was taken");
    });
}

TEST_CASE("a node that finds no head says so once, and again when it has lost one",
          "[cluster][agent]") {
    test::log_lines lines("agent");
    with_head(7, [&lines](test::sim_nodes& c) -> task<void> {
        auto killed = c.kill_head();
        co_await killed;
        auto& n = c.add_node(1);
        co_await sleep_for(1s);
        CHECK(lines.seen.empty()); // one that comes a moment later is in time
        co_await sleep_for(20s);
        INFO(lines.text());
        CHECK(lines.count("no head answers there") == 1);
        CHECK(lines.count("head=sim:head:1") == 1);
        c.start_head();
        while (!n.agent->role->is_joined()) co_await sleep_for(10ms);
        auto again = c.kill_head();
        co_await again;
        co_await sleep_for(20s);
        CHECK(lines.count("the head is away; workers go on") == 1);
        CHECK(lines.seen.size() == 2);
    });
}

TEST_CASE("who has reached a head that ends without an answer ends as the others do",
          "[cluster][agent]") {
    test::in_world_of_nodes(8, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        const test::log_lines lines("agent", logging::level::info);
        net::link_endpoint head(c.network().host("head"), c.head_address(),
                                cluster::detail::cluster_link(c.secret(), "head", "head", 1));
        scope serving;
        serving.spawn(head.serve(&ending_head));
        auto& n = c.add_node(1);
        const auto d = c.make_driver("driver");
        const auto asks = []() -> task<std::string> {
            auto asked = as_result(as_task(remote<&never_called>()));
            const auto outcome = co_await asked;
            co_return outcome ? "it was taken" : outcome.error().what();
        };
        std::string said;
        const auto driver = [&]() -> task<void> { // NOLINT: outlives the run
            auto asking = asks();
            said = co_await asking;
        };
        auto driving = test::as_driver(d.get(), driver);
        co_await driving;
        CHECK(said.find("the cluster was stopped") != std::string::npos);
        co_await sleep_for(1s);
        CHECK(n.agent->over);
        CHECK_FALSE(n.agent->failure);
        CHECK(lines.count("told to leave why=the cluster was stopped") == 1);
        head.close();
        auto served = serving.join();
        co_await served;
    });
}

TEST_CASE("an agent gives up after join_within when no head answers", "[cluster][agent]") {
    with_head(3, [](test::sim_nodes& c) -> task<void> {
        auto killed = c.kill_head();
        co_await killed;
        const auto begin = c.loop().now();
        auto& n = c.add_node(1);
        auto ended = n.agent->running.join();
        co_await ended;
        CHECK(n.agent->failure->code() == errc::refused);
        const std::string why = n.agent->failure->what();
        INFO(why);
        CHECK(why.find("no head has answered at sim:head:1: ") != std::string::npos);
        CHECK(why.find(" tries in 6") != std::string::npos);
        CHECK(c.loop().now() - begin >= 60s);
        CHECK(c.loop().now() - begin < 65s);
        n.agent.reset();
    });
}

TEST_CASE("an agent started again takes its name over from the dead one", "[cluster][agent]") {
    with_head(4, [](test::sim_nodes& c) -> task<void> {
        auto& n = c.add_node(1);
        co_await sleep_for(1s);
        auto killed = c.kill_agent(n, true);
        co_await killed;
        co_await sleep_for(1500ms); // silent, not lost yet
        c.start_agent(n);
        co_await sleep_for(1s);
        const auto s = c.head().status();
        REQUIRE(s.nodes.size() == 1);
        CHECK(s.nodes[0].name == "n1");
        CHECK_FALSE(s.nodes[0].suspect);
    });
}

TEST_CASE("a node that leaves alone ends when its head is gone for long", "[J4][cluster][agent]") {
    with_head(5, [](test::sim_nodes& c) -> task<void> {
        auto& n = c.add_node(1);
        auto killed_agent = c.kill_agent(n);
        co_await killed_agent;
        auto how = c.agent_defaults();
        how.orphan_grace = 10s;
        how.leaves_alone = true;
        c.start_agent(n, std::move(how));
        co_await sleep_for(1s);
        CHECK(n.agent->role->is_joined());
        auto away = c.kill_head();
        co_await away;
        co_await sleep_for(5s);
        CHECK_FALSE(n.agent->over);
        c.start_head(); // it was only away
        co_await sleep_for(20s);
        CHECK(n.agent->role->is_joined());
        auto gone = c.kill_head();
        co_await gone;
        const auto begin = c.loop().now();
        auto ended = n.agent->running.join();
        co_await ended;
        REQUIRE(n.agent->failure);
        CHECK(n.agent->failure->code() == errc::peer_lost);
        CHECK(c.loop().now() - begin >= 10s);
        CHECK(c.loop().now() - begin < 15s);
        n.agent.reset();
    });
}

TEST_CASE("whoever answers where the head was ends no node and no program, and is said once",
          "[cluster][agent]") {
    using kind = test::stranger::kind;
    struct way {
        kind what;
        std::string_view said; // nothing: it gives no answer, as a host that is away
    };
    const way one = GENERATE(way{kind::other_token, "the peer has another token"},
                             way{kind::older_version, "the peer speaks protocol version"},
                             way{kind::http, "it looks like HTTP"},
                             way{kind::echo, "the peer claims the same role"},
                             way{kind::silent, ""}, way{kind::closing, ""});
    const test::log_lines lines("");
    with_head(9, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        auto& n = c.add_node(1);
        const auto d = c.make_driver("driver");
        const auto calls = [&]() -> task<void> { // NOLINT: outlives the run
            auto before = remote<&twice>(4);
            const int four = co_await before;
            CHECK(four == 8);
            auto killed = c.kill_head();
            co_await killed;
            test::stranger other(c.network(), c.head_address(), one.what);
            co_await sleep_for(20s);
            auto meanwhile = remote<&twice>(5);
            const int five = co_await meanwhile;
            CHECK(five == 10);
            CHECK(other.asked() > 2);
            CHECK_FALSE(n.agent->over);
            auto gone = other.end();
            co_await gone;
            c.start_head();
            co_await sleep_for(10s);
            CHECK(n.agent->role->is_joined());
            CHECK(c.head().status().jobs.size() == 1);
            auto after = remote<&twice>(6);
            const int six = co_await after;
            CHECK(six == 12);
        };
        auto driving = test::as_driver(d.get(), calls);
        co_await driving;
    });
    INFO(lines.text());
    CHECK(lines.count("the head is away; workers go on") == 2); // the node says it, and the program
    CHECK(lines.count("something else answers at the head's address") ==
          (one.said.empty() ? 0 : 2));
    CHECK(lines.count(" after=") == 2);
    if (!one.said.empty()) CHECK(lines.count(one.said) >= 2);
}

TEST_CASE("who has never joined ends at once with what answers there", "[cluster][agent]") {
    with_head(10, [](test::sim_nodes& c) -> task<void> {
        auto killed = c.kill_head();
        co_await killed;
        test::stranger other(c.network(), c.head_address(), test::stranger::kind::http);
        const auto begin = c.loop().now();
        auto& n = c.add_node(1);
        auto ended = n.agent->running.join();
        co_await ended;
        CHECK(c.loop().now() - begin < 1s);
        REQUIRE(n.agent->failure);
        CHECK(std::string(n.agent->failure->what()).find("it looks like HTTP") !=
              std::string::npos);
        auto gone = other.end();
        co_await gone;
        n.agent.reset();
    });
}

TEST_CASE("a worker that stands still for long is ended, and its lease comes back",
          "[F8][cluster][agent]") {
    test::in_cluster(
        11, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto stopped = remote<&pid_after>(500);
            co_await sleep_for(100ms);
            const auto before = c.at(0).children->running();
            REQUIRE(before.size() == 1);
            const auto begin = c.loop().now();
            c.at(0).children->pause(before[0].pid, 100s);
            auto behind = remote<&pid_after>(1);
            const auto there = co_await behind;
            CHECK(c.loop().now() - begin < 8s);
            CHECK(there != before[0].pid);
            const auto stopped_came = co_await stopped;
            CHECK(stopped_came == there);
            CHECK(d.self.stats().workers_lost == 1);
        },
        1);
}

TEST_CASE("a worker that stands still for a while goes on", "[F8][cluster][agent]") {
    test::in_cluster(
        12, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto stopped = remote<&pid_after>(500);
            co_await sleep_for(100ms);
            const auto before = c.at(0).children->running();
            REQUIRE(before.size() == 1);
            c.at(0).children->pause(before[0].pid, 2s);
            const auto stopped_came = co_await stopped;
            CHECK(stopped_came == before[0].pid);
            CHECK(d.self.stats().workers_lost == 0);
        },
        1);
}

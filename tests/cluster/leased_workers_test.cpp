// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/rt/actor.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/log_lines.hpp>
#include <tests/support/sim_nodes.hpp>

#include <cstdint>
#include <set>

using namespace skein;
using namespace std::chrono_literals;

namespace {

int leased_twice(int x) { return 2 * x; }

task<int> leased_later(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}
/// Waits for the next one, down to the last.
task<int> leased_deep(int depth) {
    co_await sleep_for(1s);
    if (depth == 0) co_return 0;
    auto inner = remote<&leased_deep>(depth - 1);
    const int got = co_await inner;
    co_return got + 1;
}
struct leased_counter {
    int n = 0;
    task<int> add(int ms) {
        const int mine = ++n;
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return mine;
    }
};

task<void> call_once(result<int>* out) {
    auto asked = as_result(as_task(remote<&leased_twice>(4)));
    *out = co_await asked;
}

/// What a call of a driver with these options gives, on a cluster of one node.
result<int> outcome_of(cluster::leased_workers_options how, bool has_head,
                       std::function<void(test::sim_nodes&)> before = {}) {
    result<int> out(0);
    test::in_world_of_nodes(1, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        if (has_head) {
            c.start_head();
            c.add_node(1);
        }
        if (before) before(c);
        const auto d = c.make_driver("driver", 0, std::move(how));
        auto driving = test::as_driver(d.get(), [&out] { return call_once(&out); });
        co_await driving;
    });
    return out;
}

} // namespace

TEST_CASE("without a head calls fail with its address and what to do",
          "[cluster][leased_workers]") {
    const auto got = outcome_of({}, false);
    REQUIRE_FALSE(got);
    CHECK(got.error().code() == errc::refused);
    const std::string text = got.error().what();
    INFO(text);
    CHECK(text.find("sim:head:1") != text.npos);
    CHECK(text.find("skein head") != text.npos);
    CHECK(text.find(" tries in 1") != text.npos); // 10 s, and the last one's pause
}

TEST_CASE("a program says soon that no head answers, and how long it is tried",
          "[cluster][leased_workers]") {
    for (const bool is_cut_off : {false, true}) {
        const test::log_lines lines("cluster");
        test::in_world_of_nodes(2, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
            if (is_cut_off) { // the first attempt takes longer
                c.start_head();
                c.network().partition("head", "driver");
            }
            const auto d = c.make_driver("driver");
            const auto body = [&]() -> task<void> { // NOLINT: outlives the run
                auto r = remote<&leased_twice>(4);
                co_await sleep_for(1s);
                CHECK(lines.seen.empty()); // one that comes a moment later is in time
                co_await sleep_for(1s);
                INFO(lines.text());
                CHECK(lines.count("no head answers there") == 1);
                CHECK(lines.count("head=sim:head:1") == 1);
                CHECK(lines.count("for=10") == 1);
                auto asked = as_result(as_task(r));
                const auto outcome = co_await asked;
                CHECK_FALSE(outcome);
                CHECK(lines.count("no head answers there") == 1);
            };
            auto driving = test::as_driver(d.get(), body);
            co_await driving;
        });
    }
}

TEST_CASE("a program that no node can start fails after a while", "[cluster][leased_workers]") {
    cluster::leased_workers_options how;
    how.start_within = 2s;
    const test::log_lines lines("cluster");
    const auto got = outcome_of(
        std::move(how), true, [](test::sim_nodes& c) { c.at(0).children->faults().not_found = 1; });
    REQUIRE_FALSE(got);
    CHECK(got.error().code() == errc::worker_lost);
    const std::string text = got.error().what();
    INFO(text);
    CHECK(text.find("did not start") != text.npos);
    CHECK(text.find("every node") != text.npos);
    CHECK(lines.count("a worker did not start") >= 1);
    CHECK(lines.count("hint=the program must be there") == lines.seen.size());
}

TEST_CASE("of many starts that fail ever fewer are told, for each node and reason",
          "[cluster][leased_workers]") {
    const test::log_lines lines("cluster");
    test::in_cluster(43, 3, [&](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        for (const std::size_t bad : {1, 2}) c.at(bad).children->faults().not_found = 1;
        std::vector<ref<int>> all; // on all three nodes, if it can be
        for (int i = 0; i < 64; ++i) all.push_back(remote<&leased_later>(2000));
        co_await sleep_for(60s);
        for (const auto& r : all) r.cancel();
    });
    INFO(lines.text());
    for (const char* node : {"a worker did not start on n2: ", "a worker did not start on n3: "}) {
        CHECK(lines.count(node) >= 2);
        CHECK(lines.count(node) <= 12); // of some hundred
    }
    CHECK(lines.count("times=2 hint") == 2);
}

TEST_CASE("a connection to a worker that breaks costs no call and no actor",
          "[F12][cluster][leased_workers]") {
    test::in_cluster(41, 2, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        std::vector<actor_handle<leased_counter>> counters;
        for (int i = 0; i < 4; ++i) {
            auto making = actor<leased_counter>.with({.cpus = 1})();
            counters.push_back(co_await making);
        }
        std::vector<ref<int>> sums;
        co_await sleep_for(2s);
        const auto before = d.self.stats().workers_lost; // they have made room for the actors
        for (int i = 0; i < 200; ++i) {
            for (const auto& one : counters) sums.push_back(one.call<&leased_counter::add>(100));
            co_await sleep_for(50ms);
            c.network().reset("driver", i % 2 == 0 ? "n1" : "n2");
        }
        // The head still hears all of them.
        c.network().partition("driver", "n1");
        c.network().reset("driver", "n1");
        co_await sleep_for(15s);
        c.network().heal_all();
        for (const auto& one : counters) sums.push_back(one.call<&leased_counter::add>(1));
        for (std::size_t i = 0; i < sums.size(); ++i) {
            const int got = co_await sums[i];
            CHECK(got == static_cast<int>(i / 4 + 1));
        }
        CHECK(d.self.stats().workers_lost == before);
        CHECK(d.self.stats().retried == 0);
    });
}

TEST_CASE("a worker that computes while its connection breaks is not lost, and one that cannot be "
          "reached is",
          "[F12][cluster][leased_workers]") {
    for (const bool is_reached : {true, false}) {
        test::in_cluster(
            44, 1,
            [is_reached](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
                auto r = remote<&leased_later>.with({.retries = 0})(1000);
                co_await sleep_for(500ms);
                const auto pid = c.at(0).children->running().front().pid;
                c.at(0).children->compute(pid, 10min);
                c.network().reset("driver", "n1");
                if (!is_reached) c.network().partition("driver", "n1");
                const auto began = c.loop().now();
                auto asked = as_result(as_task(r));
                const auto outcome = co_await asked;
                c.network().heal_all();
                if (is_reached) {
                    INFO((outcome ? "" : outcome.error().what()));
                    REQUIRE(outcome);
                    CHECK(c.loop().now() - began > 5min);
                    CHECK(d.self.stats().workers_lost == 0);
                } else {
                    REQUIRE_FALSE(outcome);
                    CHECK(outcome.error().code() == errc::worker_lost);
                    CHECK(c.loop().now() - began > 30s);
                    CHECK(c.loop().now() - began < 60s);
                    const std::string text = outcome.error().what();
                    INFO(text);
                    CHECK(text.find("has not come back for 30 s") != text.npos);
                }
            },
            1);
    }
}

TEST_CASE("calls on workers of a cluster that has gone do not wait for them",
          "[F12][cluster][leased_workers]") {
    test::in_cluster(45, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto r = remote<&leased_later>.with({.retries = 0})(600'000);
        co_await sleep_for(2s);
        c.network().reset("driver", "n1"); // nobody hears the last words
        c.network().partition("driver", "n1");
        const auto began = c.loop().now();
        c.head().stop();
        auto asked = as_result(as_task(r));
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        INFO(outcome.error().what());
        CHECK(c.loop().now() - began < 30s);
        c.network().heal_all();
    });
}

TEST_CASE("a worker that dies is lost at once, although its connection might come back",
          "[F8][cluster][leased_workers]") {
    test::in_cluster(
        42, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
            auto r = remote<&leased_later>.with({.retries = 0})(60'000);
            co_await sleep_for(2s);
            const auto began = c.loop().now();
            c.at(0).children->kill(c.at(0).children->running().front().pid);
            auto asked = as_result(as_task(r));
            const auto outcome = co_await asked;
            REQUIRE_FALSE(outcome);
            CHECK(outcome.error().code() == errc::worker_lost);
            CHECK(c.loop().now() - began < 200ms);
        },
        1);
}

TEST_CASE("a task that does not listen is ended by force by its agent, also when the head was away",
          "[C14][cluster][leased_workers]") {
    for (const bool is_away : {false, true}) {
        test::in_cluster(
            44, 1,
            [is_away](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
                auto r = remote<&leased_later>(60'000);
                auto beside = remote<&leased_twice>.with({.cpus = 0})(1);
                (void)co_await beside;
                const auto pid = c.at(0).children->running().front().pid;
                c.at(0).children->pause(pid, 10min); // it computes
                if (is_away) {
                    auto killed = c.kill_head();
                    co_await killed;
                }
                const auto began = c.loop().now();
                r.cancel_by_force();
                if (is_away) {
                    co_await sleep_for(1s);
                    CHECK_FALSE(r.ready());
                    c.start_head();
                }
                auto asked = as_result(as_task(r));
                const auto outcome = co_await asked;
                REQUIRE_FALSE(outcome);
                INFO(outcome.error().what());
                CHECK(outcome.error().code() == errc::cancelled);
                CHECK(std::string(outcome.error().what()).find("by force") != std::string::npos);
                CHECK(c.loop().now() - began < (is_away ? 15s : 500ms));
                auto again = remote<&leased_twice>(4);
                const int got = co_await again;
                CHECK(got == 8);
            },
            1);
    }
}

TEST_CASE("a deadline that passes meanwhile does not spare a task the force",
          "[C14][C9][cluster][leased_workers]") {
    test::in_cluster(
        45, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto r = remote<&leased_later>.with({.deadline = 2s})(60'000);
            auto beside = remote<&leased_twice>.with({.cpus = 0})(1);
            (void)co_await beside;
            c.at(0).children->pause(c.at(0).children->running().front().pid, 10min);
            co_await sleep_for(1'950ms);
            r.cancel_by_force();
            auto asked = as_result(as_task(r));
            const auto outcome = co_await asked;
            REQUIRE_FALSE(outcome);
            CHECK(outcome.error().code() == errc::timeout);
            const auto told = c.loop().now();
            while (d.self.stats().workers_lost == 0) co_await sleep_for(10ms);
            CHECK(c.loop().now() - told < 500ms);
        },
        1);
}

TEST_CASE("a task that waits behind another is not ended by force: it has not begun",
          "[C14][C7][cluster][leased_workers]") {
    test::in_cluster(
        46, 1,
        [](test::sim_nodes&, test::sim_nodes::driver& d) -> task<void> {
            for (int i = 0; i < 500; ++i) { // several are sent ahead from now on
                auto r = remote<&leased_twice>(i);
                (void)co_await r;
            }
            std::vector<ref<int>> all;
            for (int i = 0; i < 50; ++i) all.push_back(remote<&leased_twice>(i));
            all.back().cancel_by_force();
            for (std::size_t i = 0; i + 1 < all.size(); ++i) {
                const int got = co_await all[i];
                CHECK(got == 2 * static_cast<int>(i));
            }
            co_await sleep_for(1s);
            CHECK(d.self.stats().workers_lost == 0);
        },
        1);
}

TEST_CASE("the workers of a driver that was killed end long before the head gives it up",
          "[cluster][leased_workers]") {
    test::in_cluster(43, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto other = c.make_driver("second");
        const auto use_it = [](test::sim_nodes::driver*) -> task<void> {
            auto r = remote<&leased_twice>(1);
            (void)co_await r;
        };
        auto used = other->self.run_here(use_it(other.get()));
        co_await used;
        while (c.processes() < 4) co_await sleep_for(10ms);
        const auto began = c.loop().now();
        c.network().crash("second"); // kill -9: its kernel refuses who dials it
        auto ended = other->end();
        co_await ended;
        while (c.processes() > 0) co_await sleep_for(10ms);
        CHECK(c.loop().now() - began < 3s);
    });
}

TEST_CASE("a demand that no node has waits, and says so", "[cluster][leased_workers]") {
    test::in_world_of_nodes(3, [](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(1);
        cluster::leased_workers_options how;
        how.demand = sched::parse_resources("cpu=2").value();
        const auto d = c.make_driver("driver", 1, std::move(how));
        const auto body = [](test::sim_nodes* of) -> task<void> {
            auto r = remote<&leased_twice>(4);
            co_await sleep_for(5s);
            const auto s = of->head().status();
            CHECK(s.jobs.at(0).waiting == 1);
            CHECK(s.jobs.at(0).why.find("cpu=2") != std::string::npos);
            of->add_node(2);
            const int got = co_await r;
            CHECK(got == 8);
        };
        auto driving = test::as_driver(d.get(), [&] { return body(&c); });
        co_await driving;
    });
}

namespace {

/// A driver asks for a gpu, before it has joined, on a cluster of no node, one and two; only the
/// last one has a gpu.
task<void> ask_for_a_gpu(test::sim_nodes* of, test::log_lines* lines) {
    auto r = remote<&leased_twice>.with({.gpus = 1})(4);
    co_await sleep_for(2s);
    INFO(lines->text());
    CHECK(lines->count("no node takes workers") == 1);
    CHECK(lines->count("skein join") == 1);
    CHECK(lines->seen.size() == 1);
    of->add_node(2);
    co_await sleep_for(2s);
    CHECK(lines->count(
              "why=asks for cpu=1,gpu=1, no node could ever hold it: n1 has most, gpu=0; lower "
              "the demand, or add a node that has it") == 1);
    of->add_node(2);
    auto more = remote<&leased_twice>.with({.gpus = 1})(5);
    co_await sleep_for(2s);
    CHECK(lines->seen.size() == 2);
    auto first = test::drain(of, "n1", true);
    co_await first;
    auto second = test::drain(of, "n2", true);
    co_await second;
    co_await sleep_for(5s);
    CHECK(lines->count("no node takes workers") == 2);
    of->agent_offers = sched::parse_resources("gpu=2").value();
    of->add_node(2);
    const int got = co_await r;
    CHECK(got == 8);
    const int other = co_await more;
    CHECK(other == 10);
    CHECK(lines->seen.size() == 3);
}

} // namespace

TEST_CASE("a demand that no node could hold, and that there is no node, is said once each",
          "[cluster][leased_workers]") {
    test::log_lines lines("cluster");
    test::in_world_of_nodes(5, [&lines](test::sim_nodes& c) -> task<void> {
        c.start_head();
        const auto d = c.make_driver("driver");
        auto driving = test::as_driver(d.get(), [&] { return ask_for_a_gpu(&c, &lines); });
        co_await driving;
    });
}

TEST_CASE("a demand that was made before the driver has joined is said not to fit",
          "[cluster][leased_workers]") {
    test::log_lines lines("cluster");
    test::in_world_of_nodes(6, [&lines](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(2);
        co_await sleep_for(1s);
        const auto d = c.make_driver("driver");
        const auto body = [](test::log_lines* said) -> task<void> {
            auto r = remote<&leased_twice>.with({.cpus = 8})(4);
            auto other = remote<&leased_twice>.with({.on = node_named("nobody")})(4);
            auto waits = remote<&leased_later>(1000); // two run, one waits for its turn
            auto waits_too = remote<&leased_later>(1000);
            auto last = remote<&leased_later>(1000);
            (void)co_await last;
            INFO(said->text());
            CHECK(said->count("asks for cpu=8, no node could ever hold it: n1 has most, cpu=2") ==
                  1);
            CHECK(said->count("on nobody: no node of that name is there") == 1);
            CHECK(said->seen.size() == 2);
            r.cancel();
            other.cancel();
        };
        auto driving = test::as_driver(d.get(), [&] { return body(&lines); });
        co_await driving;
    });
}

TEST_CASE("a head that is started again and has no nodes yet is nothing to warn of",
          "[cluster][leased_workers]") {
    test::log_lines lines("cluster");
    test::in_world_of_nodes(7, [](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(2);
        co_await sleep_for(1s);
        const auto d = c.make_driver("driver");
        const auto body = [](test::sim_nodes* of) -> task<void> {
            auto waits = remote<&leased_twice>.with({.gpus = 1})(4); // so that something does
            auto r = remote<&leased_later>(20'000);
            co_await sleep_for(2s);
            auto killed = of->kill_head();
            co_await killed;
            co_await sleep_for(2s);
            of->start_head();
            (void)co_await r;
            waits.cancel();
        };
        auto driving = test::as_driver(d.get(), [&] { return body(&c); });
        co_await driving;
    });
    INFO(lines.text());
    CHECK(lines.count("no node takes workers") == 0);
    CHECK(lines.count("no node could hold") == 1);
}

TEST_CASE("a worker and a node that were lost are said once each, and those that leave are not",
          "[cluster][leased_workers]") {
    test::log_lines lines("cluster");
    test::in_cluster(
        47, 3,
        [&lines](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto first = remote<&leased_twice>(1);
            (void)co_await first;
            while (d.workers.connected() < 6) co_await sleep_for(10ms);
            auto drained = test::drain(&c, "n3", true);
            co_await drained;
            while (d.workers.connected() > 4) co_await sleep_for(10ms);
            CHECK(lines.seen.empty());
            const auto pid = c.at(0).children->running().front().pid;
            c.at(0).children->kill(pid);
            co_await sleep_for(5s);
            CHECK(lines.count("a worker was lost") == 1);
            CHECK(lines.count(fmt::format("node=n1 pid={} why=killed by signal 9", pid)) == 1);
            CHECK(lines.count("then=calls that may run again do") == 1);
            auto gone = c.kill_agent(c.at(1), true);
            co_await gone;
            co_await sleep_for(30s);
            CHECK(lines.count("a node was lost with its workers node=n2 workers=2") == 1);
            auto forced = remote<&leased_later>(60'000);
            co_await sleep_for(1s);
            c.at(0).children->compute(c.at(0).children->running().front().pid, 10min);
            c.at(0).children->compute(c.at(0).children->running().back().pid, 10min);
            forced.cancel_by_force(); // somebody wants that
            co_await sleep_for(5s);
            INFO(lines.text());
            CHECK(lines.seen.size() == 2);
        },
        2);
    INFO(lines.text());
    CHECK(lines.seen.size() == 2); // nor at the end of all
}

TEST_CASE("a driver that has ended leaves its room to the next", "[cluster][leased_workers]") {
    test::in_world_of_nodes(4, [](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(2);
        const auto begin = c.loop().now();
        for (int i = 0; i < 5; ++i) {
            const auto d = c.make_driver("driver", 0);
            result<int> got(0);
            auto driving = test::as_driver(d.get(), [&got] { return call_once(&got); });
            co_await driving;
            CHECK(got.value() == 8);
        }
        CHECK(c.loop().now() - begin < 3s);
    });
}

namespace {

std::string lease_host() { return runtime_context().host; }
task<std::string> lease_stay(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return lease_host();
}

/// On two nodes with one cpu, n1 and (with a gpu, in zone b) n2.
task<void> ask_for_more(test::sim_nodes* of) {
    auto plain = remote<&lease_host>();
    (void)co_await plain;
    co_await sleep_for(1s); // all cpus are this driver's
    auto gpu = remote<&lease_host>.with({.gpus = 1})();
    const auto with_gpu = co_await gpu;
    CHECK(with_gpu == "n2");
    auto ssd = remote<&lease_host>.with({.cpus = 0, .resources = "ssd=1"})();
    const auto with_ssd = co_await ssd;
    CHECK(with_ssd == "n2");
    for (int i = 0; i < 4; ++i) {
        auto there = remote<&lease_stay>.with({.on = label("zone=b")})(10);
        const auto by_label = co_await there;
        CHECK(by_label == "n2");
        auto named = remote<&lease_stay>.with({.on = node_named("n1")})(10);
        const auto by_name = co_await named;
        CHECK(by_name == "n1");
    }
    // When nothing waits for them any more the cpus are everybody's again.
    co_await sleep_for(3s);
    for (const auto& n : of->head().status().nodes) CHECK(n.used == "cpu=1");
    CHECK(of->processes() == 2);
}

} // namespace

TEST_CASE("tasks go to nodes that have what they ask for, by label and by name",
          "[cluster][leased_workers]") {
    test::in_world_of_nodes(5, [](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(1);
        auto& second = c.add_node(1);
        auto gone = c.kill_agent(second);
        co_await gone;
        auto how = c.agent_defaults();
        how.name = "big";
        how.offers = sched::parse_resources("gpu=1,ssd=2").value();
        how.labels = {"zone=b"};
        c.start_agent(second, std::move(how));
        co_await sleep_for(10s); // the first agent there is forgotten
        const auto d = c.make_driver("driver", 0);
        auto driving = test::as_driver(d.get(), [&c] { return ask_for_more(&c); });
        co_await driving;
    });
}

TEST_CASE("a demand that no node can hold waits until one comes", "[cluster][leased_workers]") {
    test::in_cluster(6, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto r = remote<&lease_host>.with({.gpus = 1})();
        co_await sleep_for(5s);
        CHECK_FALSE(r.ready());
        CHECK(c.head().status().jobs.at(0).why.find("gpu=1") != std::string::npos);
        c.agent_offers.gpu = 1;
        c.add_node(1);
        const auto got = co_await r;
        CHECK(got == "n2");
    });
}

// ---- environment and output of workers ----------------------------------------------------------

namespace {

std::string lease_surroundings() {
    const auto& how = test::sim_nodes::this_process()->started_with();
    std::string out = how.cwd;
    for (const auto& [name, value] : how.env) out += ";" + name + "=" + value;
    return out;
}

/// Prints so many lines, all in one piece, and dies if it shall.
task<int> lease_talk(int lines, bool dies) {
    auto* const self = test::sim_nodes::this_process();
    std::string text;
    for (int i = 1; i <= lines; ++i) text += "line " + std::to_string(i) + "\n";
    auto printing = self->print(true, std::move(text));
    co_await printing;
    if (dies) co_await sleep_for(1000s);
    co_return lines;
}

/// What a driver has printed.
struct heard_output {
    std::vector<std::string> lines;
    std::uint64_t left_out = 0;
    std::string worker, node;
    duration slowness{0};

    cluster::leased_workers_options options() {
        cluster::leased_workers_options how;
        how.print = [this](std::vector<proc::worker_lines> all) {
            return print(this, std::move(all));
        };
        return how;
    }

private:
    static task<void> print(heard_output* self, std::vector<proc::worker_lines> all) {
        if (self->slowness > duration(0)) co_await sleep_for(self->slowness);
        for (auto& some : all) {
            self->worker = some.worker;
            self->node = some.node;
            self->left_out += some.left_out;
            for (auto& line : some.lines) self->lines.push_back(std::move(line.text));
        }
    }
};

template <class Body>
void with_printing_driver(heard_output* heard, Body body) {
    test::in_world_of_nodes(7, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.start_head();
        c.add_node(1);
        const auto d = c.make_driver("driver", 0, heard->options());
        auto driving = test::as_driver(d.get(), [&] { return body(&c); });
        co_await driving;
    });
}

} // namespace

TEST_CASE("what workers print is all there when their driver ends", "[cluster][leased_workers]") {
    heard_output heard;
    with_printing_driver(&heard, [](test::sim_nodes*) -> task<void> {
        auto r = remote<&lease_talk>(3000, false);
        (void)co_await r;
    });
    REQUIRE(heard.lines.size() == 3000);
    CHECK(heard.lines.front() == "line 1");
    CHECK(heard.lines.back() == "line 3000");
    CHECK(heard.left_out == 0);
    CHECK(heard.worker == "worker-1");
    CHECK(heard.node == "n1");
}

TEST_CASE("the last words of a worker come before its calls fail, and are in the error",
          "[cluster][leased_workers]") {
    heard_output heard;
    with_printing_driver(&heard, [&heard](test::sim_nodes* c) -> task<void> { // NOLINT: as above
        auto r = remote<&lease_talk>.with({.retries = 0})(5, true);
        auto waiting = as_result(with_timeout(as_task(r), 1s));
        (void)co_await waiting;
        auto& where = *c->at(0).children;
        where.kill(where.running().front().pid);
        auto failing = as_result(as_task(r));
        const auto lost = co_await failing;
        REQUIRE_FALSE(lost);
        CHECK(heard.lines.size() == 5);
        const std::string text = lost.error().what();
        INFO(text);
        CHECK(text.find("killed by signal 9") != text.npos);
        CHECK(text.find("line 3 | line 4 | line 5") != text.npos);
    });
}

TEST_CASE("a driver that prints slowly holds up no worker, and what is left out is counted",
          "[cluster][leased_workers]") {
    heard_output heard;
    heard.slowness = 400ms;
    constexpr int lines = 100'000;
    with_printing_driver(&heard, [](test::sim_nodes* c) -> task<void> {
        auto first = remote<&lease_talk>(1, false);
        (void)co_await first;
        co_await sleep_for(2s); // it is printed
        const auto begin = c->loop().now();
        auto r = remote<&lease_talk>(lines - 1, false);
        (void)co_await r;
        CHECK(c->loop().now() - begin < 100ms);
    });
    CHECK(heard.left_out > 0);
    CHECK(heard.lines.size() + heard.left_out == lines);
    CHECK(heard.lines.front() == "line 1");
}

namespace {

struct lease_resident {
    std::string surroundings() { return lease_surroundings(); }
};
task<std::string> lease_asks_resident() {
    auto a = co_await actor<lease_resident>.with({.env = "A=of a task"})();
    auto asked = a.call<&lease_resident::surroundings>();
    co_return co_await asked;
}

} // namespace

TEST_CASE("an actor's variables and folder are those of its process, also if a worker makes it",
          "[O12][cluster][leased_workers]") {
    test::in_cluster(9, 2, [](test::sim_nodes&, test::sim_nodes::driver&) -> task<void> {
        auto a = co_await actor<lease_resident>.with({.env = "A=1", .cwd = "/data"})();
        auto asked = a.call<&lease_resident::surroundings>();
        const auto seen = co_await asked;
        CHECK(seen == "/data;A=1");
        auto nested = remote<&lease_asks_resident>();
        const auto inner = co_await nested;
        CHECK(inner == ";A=of a task");
        auto wrong = as_result(actor<lease_resident>.with({.env = "no equals sign"})());
        const auto refused = co_await wrong;
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::invalid_argument);
    });
}

TEST_CASE("a task's variables and folder are those of its worker's process",
          "[cluster][leased_workers]") {
    test::in_cluster(8, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto plain = remote<&lease_surroundings>();
        const auto before = co_await plain;
        CHECK(before.empty());
        auto with = remote<&lease_surroundings>.with({.env = "B=two words\nA=1", .cwd = "/data"})();
        const auto seen = co_await with;
        CHECK(seen == "/data;A=1;B=two words");
        auto only = remote<&lease_surroundings>.with({.env = "A=2"})();
        const auto other = co_await only;
        CHECK(other == ";A=2");
        for (std::size_t i = 0; i < 2; ++i) c.at(i).children->remove_folder("/gone");
        auto lost = as_result(as_task(remote<&lease_surroundings>.with({.cwd = "/gone"})()));
        const auto no_folder = co_await lost;
        REQUIRE_FALSE(no_folder);
        CHECK(no_folder.error().code() == errc::not_found);
        const std::string text = no_folder.error().what();
        INFO(text);
        CHECK(text.find("/gone") != text.npos);
        CHECK(text.find(".on") != text.npos);
        auto after = remote<&lease_surroundings>();
        const auto still = co_await after;
        CHECK(still.empty());
    });
}

namespace {

std::set<std::int64_t> pids_of(test::sim_nodes& c) {
    std::set<std::int64_t> out;
    for (const auto& p : c.at(0).children->running()) out.insert(p.pid);
    return out;
}

/// All of a node's workers are at work, and asked back.
task<void> drain_busy_node(test::sim_nodes* c, std::vector<ref<int>>* calls, int ms) {
    for (int i = 0; i < 2; ++i) calls->push_back(remote<&leased_later>(ms));
    co_await sleep_for(1s);
    CHECK(c->processes() == 2);
    auto draining = test::drain(c, "n1", true);
    co_await draining;
    co_await sleep_for(500ms);
}

} // namespace

TEST_CASE("workers that were asked back go on when the drain of their node is undone",
          "[cluster][leased_workers]") {
    test::in_cluster(60, 1, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        std::vector<ref<int>> calls;
        auto drained = drain_busy_node(&c, &calls, 5000);
        co_await drained;
        const auto before = pids_of(c);
        auto undone = test::drain(&c, "n1", false);
        co_await undone;
        calls.push_back(remote<&leased_later>(1));
        for (auto& one : calls) co_await one;
        co_await sleep_for(2s);
        CHECK(pids_of(c) == before);
        CHECK(d.workers.connected() == 2);
        CHECK(d.self.stats().retried == 0);
    });
}

TEST_CASE("that a worker is not asked back any more is told also over the next link",
          "[cluster][leased_workers]") {
    test::in_cluster(61, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        std::vector<ref<int>> calls;
        auto drained = drain_busy_node(&c, &calls, 30'000);
        co_await drained;
        const auto before = pids_of(c);
        c.network().partition("head", "driver");
        auto undone = test::drain(&c, "n1", false);
        co_await undone;
        co_await sleep_for(9s); // the link is given up, and what was said over it
        c.network().heal_all();
        for (auto& one : calls) co_await one;
        co_await sleep_for(2s);
        CHECK(pids_of(c) == before);
    });
}

TEST_CASE("a worker that was asked back leaves also then if another one has come in its place",
          "[W7][cluster][leased_workers]") {
    const auto body = [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto outer = remote<&leased_deep>(3);
        co_await sleep_for(500ms);
        for (const bool on : {true, false}) {
            auto asking = test::drain(&c, "n1", on);
            co_await asking;
            co_await sleep_for(1s); // it waits for the next one, which waits for a core
        }
        CHECK(c.processes() == 2);
        const int got = co_await outer;
        CHECK(got == 3);
        co_await sleep_for(3s);
        CHECK(c.processes() == 1);
        CHECK(d.workers.granted() == 1);
        CHECK(c.head().status().nodes.at(0).used == "cpu=1");
        CHECK(d.self.stats().retried == 0);
    };
    test::in_cluster(64, 1, body, 1);
}

TEST_CASE("workers leave whose node is drained again at once", "[cluster][leased_workers]") {
    test::in_cluster(62, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        std::vector<ref<int>> calls;
        auto drained = drain_busy_node(&c, &calls, 3000);
        co_await drained;
        for (const bool on : {false, true}) {
            auto asking = test::drain(&c, "n1", on);
            co_await asking;
        }
        for (auto& one : calls) co_await one;
        co_await sleep_for(1s);
        CHECK(c.processes() == 0);
        auto undone = test::drain(&c, "n1", false);
        co_await undone;
        auto more = remote<&leased_twice>(3);
        const int got = co_await more;
        CHECK(got == 6);
    });
}

TEST_CASE("that no node could hold a call is told also over the next link",
          "[cluster][leased_workers]") {
    const test::log_lines lines("cluster");
    test::in_cluster(
        63, 1, [&](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> { // NOLINT
            auto first = remote<&leased_twice>(1);
            co_await first;
            c.network().block("head", "driver"); // what it asks for the head still hears
            auto waits = remote<&leased_twice>.with({.memory = std::uint64_t{1} << 50})(2);
            co_await sleep_for(9s); // the link is given up, and what was said over it
            CHECK(lines.count("no node could hold what calls ask for") == 0);
            c.network().heal_all();
            co_await sleep_for(5s);
            INFO(lines.text());
            CHECK(lines.count("no node could hold what calls ask for") == 1);
            waits.cancel();
        });
}

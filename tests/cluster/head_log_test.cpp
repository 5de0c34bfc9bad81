// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/head_log.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/sim/disk.hpp>
#include <tests/support/cluster_peer.hpp>
#include <tests/support/log_lines.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using cluster::head_log;
using cluster::log_record;

namespace {

log_record entry(int n) {
    log_record r;
    r.kind = static_cast<std::uint16_t>(1 + n % 4);
    r.body = byte_buffer(static_cast<std::size_t>(n * 7 % 50), static_cast<std::byte>(n));
    return r;
}

/// How many of the entries 0, 1, ... these are; -1: something else is among them.
int prefix_of(const std::vector<log_record>& got) {
    for (std::size_t i = 0; i < got.size(); ++i) {
        const auto want = entry(static_cast<int>(i));
        if (got[i].kind != want.kind || got[i].body != want.body) return -1;
    }
    return static_cast<int>(got.size());
}

std::vector<log_record> entries(int from, int to) {
    std::vector<log_record> out;
    for (int i = from; i < to; ++i) out.push_back(entry(i));
    return out;
}

int records_on(sim::disk& on) {
    head_log log(on, "state");
    const auto got = log.open();
    REQUIRE(got);
    REQUIRE(log.set_aside().empty());
    return prefix_of(*got);
}

task<void> until(std::function<bool()> is_so, const char* what) {
    for (int i = 0; i < 4000 && !is_so(); ++i) co_await sleep_for(10ms);
    if (!is_so()) throw error(errc::timeout, what);
}

cluster::ask_drain drain_of(std::string node, bool on = true, bool forget = false) {
    cluster::ask_drain out;
    out.node = std::move(node);
    out.on = on;
    out.forget = forget;
    return out;
}

/// A head on a simulated disk, with so many nodes.
void with_state(std::uint64_t seed, int nodes,
                const std::function<task<void>(test::sim_nodes&, sim::disk&)>& body) {
    sim::disk disk;
    test::in_world_of_nodes(
        seed, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
            c.head_disk = &disk;
            c.start_head();
            for (int i = 0; i < nodes; ++i) c.add_node(1);
            auto all = until([&] { return c.head().status().nodes.size() == std::size_t(nodes); },
                             "the nodes");
            co_await all;
            co_await sleep_for(1s); // who is killed in the middle of a hello says goodbye first
            auto rest = body(c, disk);
            co_await rest;
        });
}

} // namespace

TEST_CASE("a log gives back what was recorded, in order", "[H1]") {
    sim::disk disk;
    {
        head_log log(disk, "state");
        REQUIRE(log.open());
        CHECK(log.wants_replacing()); // there is no file yet
        CHECK(log.append(entries(0, 1)).error().code() == errc::aborted);
        REQUIRE(log.replace(entries(0, 3)));
        REQUIRE(log.append(entries(3, 5)));
        REQUIRE(log.append({}));
        REQUIRE(log.append(entries(5, 40)));
        CHECK(log.bytes() == disk.content("state/head.log").size());
    }
    disk.crash();
    CHECK(records_on(disk) == 40);
}

TEST_CASE("of a log that ends anywhere a prefix of the records is read", "[H1]") {
    const auto whole = cluster::write_log(entries(0, 30));
    int last = 0;
    for (std::size_t n = 16; n <= whole.size(); ++n) {
        const auto read = cluster::read_log(byte_span(whole).first(n));
        REQUIRE(read.is_log);
        CHECK_FALSE(read.broken);
        const int have = prefix_of(read.records);
        REQUIRE(have >= last);
        CHECK(read.whole <= n);
        last = have;
        auto torn = to_buffer(byte_span(whole).first(n)); // its last pages did not arrive
        torn.resize(whole.size());
        const auto holes = cluster::read_log(torn);
        CHECK_FALSE(holes.broken);
        CHECK(prefix_of(holes.records) >= 0);
    }
    CHECK(last == 30);
    for (std::size_t n = 0; n < 16; ++n)
        CHECK_FALSE(cluster::read_log(byte_span(whole).first(n)).is_log);
}

TEST_CASE("a changed bit in a log is noticed, and told from a torn end", "[H1]") {
    const auto whole = cluster::write_log(entries(0, 12));
    std::size_t last_record = 0;
    for (const auto& r : entries(0, 11)) last_record += 12 + r.body.size();
    last_record += 16;
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
        auto bad = whole;
        bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        const auto read = cluster::read_log(bad);
        if (bit / 8 < 16) {
            CHECK_FALSE(read.is_log);
            continue;
        }
        REQUIRE(read.is_log);
        const int have = prefix_of(read.records);
        REQUIRE(have >= 0);
        CHECK(have < 12);
        CHECK(read.broken.has_value() == (bit / 8 < last_record));
        if (read.broken) CHECK(*read.broken <= bit / 8);
    }
}

TEST_CASE("whatever a crash leaves of a log holds what was durable, and a prefix of the rest",
          "[H1]") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        for (std::uint64_t power = 0; power < 24; ++power) {
            seeded_random random(seed);
            sim::disk disk(random);
            int told = 0, tried = 0;
            {
                head_log log(disk, "state");
                REQUIRE(log.open());
                disk.power_off_after(power);
                for (int i = 0; i < 8; ++i) { // as a head does: what failed is written anew
                    const int next = tried + 1 + i % 3;
                    const bool anew = log.wants_replacing() || i == 5;
                    const auto done =
                        anew ? log.replace(entries(0, next)) : log.append(entries(tried, next));
                    tried = next;
                    if (done) told = next;
                }
            }
            disk.crash();
            disk.power_on();
            CAPTURE(seed, power);
            const int have = records_on(disk);
            CHECK(have >= told);
            CHECK(have <= tried);
        }
    }
}

TEST_CASE("a log that is damaged in the middle is set aside, with file and offset", "[H6]") {
    sim::disk disk;
    head_log log(disk, "state");
    REQUIRE(log.open());
    REQUIRE(log.replace(entries(0, 20)));
    REQUIRE(disk.flip_bit("state/head.log", std::uint64_t{8} * 100));
    head_log again(disk, "state");
    const auto got = again.open();
    REQUIRE(got);
    CHECK(got->empty());
    CHECK_THAT(again.set_aside(), ContainsSubstring("state/head.log is damaged") &&
                                      ContainsSubstring("offset ") &&
                                      ContainsSubstring("state/head.log.broken"));
    CHECK(disk.status("state/head.log.broken"));
    CHECK(disk.status("state/head.log").error().code() == errc::not_found);
    REQUIRE(again.replace(entries(0, 1)));
    CHECK(records_on(disk) == 1);
}

TEST_CASE("a log of a newer format is refused, and kept", "[H6]") {
    sim::disk disk;
    head_log log(disk, "state");
    REQUIRE(log.open());
    REQUIRE(log.replace(entries(0, 3)));
    auto& bytes = disk.content("state/head.log");
    store_le(bytes.data() + 8, std::uint32_t{2});
    store_le(bytes.data() + 12, crc32c(byte_span(bytes).first(12)));
    head_log again(disk, "state");
    const auto got = again.open();
    REQUIRE_FALSE(got);
    CHECK(got.error().code() == errc::not_supported);
    CHECK_THAT(got.error().what(), ContainsSubstring("format 2"));
    CHECK(disk.status("state/head.log"));
}

TEST_CASE("a record that could not be read again is not written", "[H6]") {
    sim::disk disk;
    head_log log(disk, "state", {.most_bytes = 2000, .most_record = 500});
    REQUIRE(log.open());
    REQUIRE(log.replace(entries(0, 2)));
    std::vector<log_record> large(1);
    large[0].body.resize(501);
    CHECK(log.append(large).error().code() == errc::too_large);
    large[0].body.resize(500);
    REQUIRE(log.append(large));
    const std::vector<log_record> many(4, large[0]);
    CHECK(log.append(many).error().code() == errc::too_large);
    CHECK(log.bytes() == disk.content("state/head.log").size());
}

TEST_CASE("a log asks to be written anew when it has grown", "[H5]") {
    sim::disk disk;
    head_log log(disk, "state", {.grown = 1000, .times = 2});
    REQUIRE(log.open());
    REQUIRE(log.replace(entries(0, 10)));
    const auto first = log.bytes();
    while (!log.wants_replacing()) REQUIRE(log.append(entries(0, 1)));
    CHECK(log.bytes() > 1000 + 2 * first);
    REQUIRE(log.replace(entries(0, 10)));
    CHECK(log.bytes() == first);
    CHECK_FALSE(log.wants_replacing());
}

TEST_CASE("a node that does not come back is missing, and its drain is remembered", "[H1][H2]") {
    with_state(1, 2, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        auto draining = test::ask_drain(&c, drain_of("n1"));
        const auto told = co_await draining;
        CHECK(told.not_durable.empty());
        auto head_died = c.kill_head();
        co_await head_died;
        disk.crash();
        auto node_died = c.kill_agent(c.at(0), true);
        co_await node_died;
        c.start_head();
        CHECK(c.head().status().generation == 2);
        auto back = until([&] { return c.head().status().nodes.size() == 1; }, "the other node");
        co_await back;
        auto s = c.head().status();
        REQUIRE(s.missing.size() == 1);
        CHECK(s.missing[0].name == "n1");
        CHECK(s.missing[0].host == "n1");
        CHECK(s.missing[0].draining);
        CHECK_FALSE(s.missing[0].left);
        CHECK(s.missing[0].since > 0);
        c.start_agent(c.at(0)); // another process, which knows of no drain
        auto all = until([&] { return c.head().status().nodes.size() == 2; }, "both nodes");
        co_await all;
        s = c.head().status();
        CHECK(s.missing.empty());
        CHECK(s.nodes[0].draining);
        CHECK_FALSE(s.nodes[1].draining);
    });
}

TEST_CASE("a missing node can be drained, undrained and forgotten; one that is there cannot",
          "[H2]") {
    with_state(2, 2, [](test::sim_nodes& c, sim::disk&) -> task<void> {
        c.network().partition("n1", "head"); // a simulated process that dies would say goodbye
        auto died = c.kill_agent(c.at(0), true);
        co_await died;
        auto missed =
            until([&] { return c.head().status().missing.size() == 1; }, "a missing node");
        co_await missed;
        auto draining = test::ask_drain(&c, drain_of("n1"));
        auto told = co_await draining;
        CHECK(told.missing);
        CHECK(told.open == 1);
        CHECK(c.head().status().missing[0].draining);
        auto undone = test::ask_drain(&c, drain_of("n1", false));
        (void)co_await undone;
        CHECK_FALSE(c.head().status().missing[0].draining);
        auto forgetting = test::ask_drain(&c, drain_of("n1", false, true));
        told = co_await forgetting;
        CHECK(c.head().status().missing.empty());
        auto again = as_result(test::ask_drain(&c, drain_of("n1", false, true)));
        const auto none = co_await again;
        REQUIRE_FALSE(none);
        CHECK(none.error().code() == errc::not_found);
        auto there = as_result(test::ask_drain(&c, drain_of("n2", false, true)));
        const auto refused = co_await there;
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::invalid_argument);
    });
}

TEST_CASE("a node that leaves in order is forgotten, unless it is drained", "[H2]") {
    with_state(3, 2, [](test::sim_nodes& c, sim::disk&) -> task<void> {
        auto draining = test::ask_drain(&c, drain_of("n1"));
        (void)co_await draining;
        for (int i = 0; i < 2; ++i) c.at(std::size_t(i)).agent->role->stop();
        auto gone = until([&] { return c.head().status().nodes.empty(); }, "no nodes");
        co_await gone;
        const auto s = c.head().status();
        REQUIRE(s.missing.size() == 1);
        CHECK(s.missing[0].name == "n1");
        CHECK(s.missing[0].left);
        CHECK(s.missing[0].draining);
        auto undone = test::ask_drain(&c, drain_of("n1", false));
        (void)co_await undone;
        CHECK(c.head().status().missing.empty());
    });
}

TEST_CASE("a head remembers which drivers there were, and how they ended", "[H3]") {
    with_state(4, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        const auto past = [&] { return c.past_jobs(); };
        auto first = c.make_driver("first"), second = c.make_driver("second");
        for (auto* d : {first.get(), second.get()}) { // as a first call would
            d->started = true;
            d->services.spawn(d->workers.serve());
        }
        auto both = until([&] { return c.head().status().jobs.size() == 2; }, "two drivers");
        co_await both;
        auto left = first->end();
        co_await left;
        auto one = until([&] { return c.head().status().jobs.size() == 1; }, "one driver");
        co_await one;
        auto asking = past();
        auto jobs = co_await asking;
        REQUIRE(jobs.size() == 1);
        CHECK(jobs[0].name == "first");
        CHECK(jobs[0].how == static_cast<std::uint8_t>(cluster::job_end::left));
        auto head_died = c.kill_head();
        co_await head_died;
        disk.crash();
        c.network().crash("second"); // for good: it dies with the head
        second->services.cancel();
        auto gone = as_result(second->services.join());
        (void)co_await gone;
        c.start_head();
        REQUIRE(c.head().status().jobs.size() == 1);
        CHECK(c.head().status().jobs[0].name == "second");
        CHECK_FALSE(c.head().status().jobs[0].connected);
        auto lost = until([&] { return c.head().status().jobs.empty(); }, "the end of its grace");
        co_await lost;
        auto asking_again = past();
        jobs = co_await asking_again;
        REQUIRE(jobs.size() == 2);
        CHECK(jobs[0].name == "second");
        CHECK(jobs[0].how == static_cast<std::uint8_t>(cluster::job_end::lost));
        CHECK(jobs[0].ended >= jobs[0].started);
        auto closing = as_result(second->end());
        (void)co_await closing;
    });
}

TEST_CASE("a driver has ended no earlier than it came, though the wall clock was set back",
          "[H3]") {
    test::in_world_of_nodes(41, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.network().give_clocks({.most_drift = 500'000, .jump_every = 1h});
        c.start_head();
        c.add_node();
        auto& clock = static_cast<sim::host_loop&>(c.network().loop_of("head"));
        const auto d = c.make_driver("driver");
        const auto body = [](test::sim_nodes::driver* self, sim::host_loop* head) -> task<void> {
            self->started = true; // as a first call would
            self->services.spawn(self->workers.serve());
            co_await sleep_for(1s);
            head->set_wall_forward(-24h);
        };
        auto driving = test::as_driver(d.get(), [&] { return body(d.get(), &clock); });
        co_await driving;
        auto asking = c.past_jobs();
        const auto past = co_await asking;
        REQUIRE(past.size() == 1);
        CHECK(past.front().started > 1'600'000'000);
        CHECK(past.front().ended == past.front().started);
    });
}

TEST_CASE("a driver that is away when the cluster is stopped is entered as lost", "[H3]") {
    with_state(9, 1, [](test::sim_nodes& c, sim::disk&) -> task<void> {
        auto saying = test::say_hello(&c, 5, test::peer_driver("asks"));
        const auto welcome = co_await saying;
        REQUIRE(welcome);
        auto away = until(
            [&] {
                const auto jobs = c.head().status().jobs;
                return jobs.size() == 1 && !jobs[0].connected;
            },
            "a driver that is away");
        co_await away;
        c.head().stop();
        co_await sleep_for(5s);
        auto ended = c.cancel_head();
        co_await ended;
        c.start_head();
        CHECK(c.head().status().jobs.empty());
        auto asking = c.past_jobs();
        const auto jobs = co_await asking;
        REQUIRE(jobs.size() == 1);
        CHECK(jobs[0].name == "asks");
        CHECK(jobs[0].how == static_cast<std::uint8_t>(cluster::job_end::lost));
    });
}

TEST_CASE("a missing node is forgotten after a week, unless it is drained", "[H2]") {
    sim::loop loop(10);
    sim::disk disk;
    cluster::detail::head_memory memory(loop);
    memory.open(std::make_shared<head_log>(disk, "state"), net::token(), loop.random());
    const auto comes = [&](const std::string& name, bool draining) {
        cluster::detail::node_record n;
        n.name = name;
        n.draining = draining;
        memory.node_came(std::move(n));
    };
    for (const bool draining : {false, true}) {
        const std::string name = draining ? "drained" : "plain";
        comes(name, draining);
        memory.node_went(name, false);
    }
    const auto a_week = []() -> task<void> { co_await sleep_for(8 * 24h); };
    loop.run(a_week());
    memory.look();
    CHECK(memory.find_node("plain") == nullptr);
    CHECK(memory.find_node("drained") != nullptr);
    const auto a_minute = []() -> task<void> { co_await sleep_for(60s); };
    loop.run(a_minute());
    for (std::size_t i = 0; i < memory.most_gone_nodes; ++i) { // one too many
        comes("n" + std::to_string(i), false);
        memory.node_went("n" + std::to_string(i), false);
    }
    CHECK(memory.missing().size() == memory.most_gone_nodes);
    CHECK(memory.find_node("drained") != nullptr);
}

TEST_CASE("a node whose drain was taken back is remembered until it had time to come", "[H2]") {
    sim::loop loop(12);
    sim::network network(loop, {});
    network.give_clocks({.jump_every = 10'000h});
    auto& clock = static_cast<sim::host_loop&>(network.loop_of("head"));
    const auto a_while = []() -> task<void> { co_await sleep_for(11min); };
    loop.run(sim::run_on(clock, a_while())); // it is no time at which nothing is
    for (const bool left : {false, true}) {
        cluster::detail::head_memory memory(clock);
        cluster::detail::node_record n;
        n.name = "n1";
        n.draining = true;
        memory.node_came(std::move(n));
        memory.node_went("n1", left);
        memory.node_drains("n1", false);
        clock.set_wall_forward(left ? 20 * 24h : 10 * 24h);
        memory.look();
        REQUIRE(memory.find_node("n1") != nullptr); // else it would come as one that is drained
        CHECK_FALSE(memory.find_node("n1")->draining);
        loop.run(sim::run_on(clock, a_while()));
        memory.look();
        CHECK(memory.find_node("n1") == nullptr);
    }
}

TEST_CASE("a drain that is asked for by a clock before 1970 is remembered with its length",
          "[H2]") {
    sim::loop loop(13);
    sim::network network(loop, {});
    network.give_clocks({.jump_every = 10'000h});
    auto& clock = static_cast<sim::host_loop&>(network.loop_of("head"));
    clock.set_wall_forward(-24h * 365 * 100);
    cluster::detail::head_memory memory(clock);
    cluster::detail::node_record n;
    n.name = "n1";
    memory.node_came(std::move(n));
    memory.node_drains("n1", true, 2000);
    CHECK(memory.find_node("n1")->drain_ms == 2000);
    CHECK(memory.find_node("n1")->drained_by != 0);
    memory.node_drains("n1", true);
    CHECK(memory.find_node("n1")->drained_by == 0);
}

TEST_CASE("what waits to be written while a disk hangs is bounded, and not lost", "[H4]") {
    sim::loop loop(11);
    sim::disk disk;
    const std::size_t many = cluster::detail::head_memory::most_unwritten + 100;
    {
        cluster::detail::head_memory memory(loop);
        memory.open(std::make_shared<head_log>(disk, "state"), net::token(), loop.random());
        for (std::uint64_t i = 1; i <= many; ++i) {
            memory.driver_came({i, "job", "host", 1, 0, 0, 0, "n", "j7"});
            REQUIRE(memory.unwritten() <= memory.most_unwritten);
        }
        memory.close();
        loop.run(cluster::detail::head_memory::keep(&memory));
    }
    cluster::detail::head_memory again(loop);
    again.open(std::make_shared<head_log>(disk, "state"), net::token(), loop.random());
    CHECK(again.open_drivers().size() == many);
    CHECK(again.open_drivers().begin()->second.begun_by == "j7");
}

TEST_CASE("on a full disk a head goes on, says so, and writes all when there is room", "[H4]") {
    with_state(5, 2, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        co_await sleep_for(1s);
        disk.set_capacity(0);
        auto draining = test::ask_drain(&c, drain_of("n1"));
        const auto told = co_await draining;
        CHECK_THAT(told.not_durable, ContainsSubstring("state/head.log cannot be written"));
        auto s = c.head().status();
        CHECK(s.trouble == told.not_durable);
        CHECK(s.nodes[0].draining); // in the head's memory, if not on its disk
        disk.set_capacity(UINT64_MAX);
        auto mended = until([&] { return c.head().status().trouble.empty(); }, "a written log");
        co_await mended;
        auto died = c.kill_head();
        co_await died;
        disk.crash();
        auto node_died = c.kill_agent(c.at(0));
        co_await node_died;
        c.start_head();
        s = c.head().status();
        REQUIRE(s.missing.size() == 2);
        CHECK(s.missing[0].draining);
    });
}

TEST_CASE(
    "a log that is removed or replaced under its head is noticed before anything is promised") {
    sim::disk disk;
    head_log log(disk, "state");
    REQUIRE(log.open());
    REQUIRE(log.replace(entries(0, 5)));
    CHECK(log.look());
    REQUIRE(log.append(entries(5, 6)));
    REQUIRE(disk.remove("state/head.log"));
    auto looked = log.look();
    REQUIRE_FALSE(looked);
    CHECK(looked.error().code() == errc::not_found);
    const auto more = log.append(entries(6, 7)); // its file is open, and has no name any more
    REQUIRE_FALSE(more);
    CHECK(more.error().code() == errc::not_found);
    CHECK(log.wants_replacing());
    REQUIRE(log.replace(entries(0, 7)));
    CHECK(records_on(disk) == 7);
    // Another head has begun there: its log is left alone.
    REQUIRE(disk.replace("state/head.log", cluster::write_log(entries(0, 3))));
    looked = log.look();
    REQUIRE_FALSE(looked);
    CHECK(looked.error().code() == errc::mismatch);
    CHECK_FALSE(log.append(entries(7, 8)));
    CHECK_FALSE(log.replace(entries(0, 8)));
    CHECK(records_on(disk) == 3);
}

TEST_CASE(
    "a log whose replacing has failed at any point is the head's own, and is replaced later") {
    for (std::uint64_t at = 0;; ++at) {
        INFO("the disk fails at change " << at);
        REQUIRE(at < 100);
        sim::disk disk;
        head_log log(disk, "state");
        REQUIRE(log.open());
        REQUIRE(log.replace(entries(0, 9)));
        disk.fail_once(at, errc::io);          // of a shorter one
        if (log.replace(entries(0, 2))) break; // it has fewer changes
        REQUIRE(log.replace(entries(0, 3)));
        REQUIRE(log.append(entries(3, 4)));
        CHECK(records_on(disk) == 4);
    }
}

TEST_CASE("a drain that is answered is kept, though somebody has removed the log before") {
    const test::log_lines lines("head");
    with_state(8, 1, [&lines](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        REQUIRE(disk.remove("state/head.log"));
        auto draining = test::ask_drain(&c, drain_of("n1"));
        const auto told = co_await draining;
        INFO(told.not_durable);
        CHECK(told.not_durable.empty());
        CHECK(lines.count("the state is written anew") == 1);
        auto died = c.kill_head();
        co_await died;
        disk.crash();
        auto node_died = c.kill_agent(c.at(0));
        co_await node_died;
        c.start_head();
        const auto s = c.head().status();
        REQUIRE(s.missing.size() == 1);
        CHECK(s.missing[0].draining);
    });
}

TEST_CASE("a removed log is written anew though nothing changes") {
    with_state(9, 1, [](test::sim_nodes&, sim::disk& disk) -> task<void> {
        REQUIRE(disk.remove("state/head.log"));
        auto there = until([&] { return bool(disk.status("state/head.log")); }, "a log");
        co_await there;
    });
}

TEST_CASE("a removed state folder is trouble, and a drain says that it is not kept") {
    with_state(10, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        REQUIRE(disk.remove_tree("state"));
        auto draining = test::ask_drain(&c, drain_of("n1"));
        const auto told = co_await draining;
        CHECK_THAT(told.not_durable, ContainsSubstring("state/head.log cannot be written"));
        CHECK(c.head().status().trouble == told.not_durable);
    });
}

TEST_CASE("a head whose log can be read and not written starts, and says so") {
    with_state(11, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        auto draining = test::ask_drain(&c, drain_of("n1"));
        (void)co_await draining;
        auto died = c.kill_head();
        co_await died;
        disk.set_read_only(true);
        c.start_head();
        CHECK_THAT(c.head().status().trouble,
                   ContainsSubstring("state/head.log cannot be written"));
        disk.set_read_only(false);
        auto mended = until([&] { return c.head().status().trouble.empty(); }, "a written log");
        co_await mended;
        auto s = c.head().status();
        CHECK(s.nodes.size() + s.missing.size() == 1);
    });
    sim::disk empty;
    empty.set_read_only(true);
    sim::loop loop(11);
    cluster::detail::head_memory memory(loop);
    CHECK_THROWS_AS(
        memory.open(std::make_shared<head_log>(empty, "state"), net::token(), loop.random()),
        error);
}

TEST_CASE("a head with a damaged log starts without what it held", "[H6]") {
    with_state(6, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        for (int i = 0; i < 20; ++i) {
            auto draining = test::ask_drain(&c, drain_of("n1", i % 2 == 0));
            (void)co_await draining;
        }
        auto died = c.kill_head();
        co_await died;
        REQUIRE(disk.flip_bit("state/head.log", std::uint64_t{8} * 120));
        c.start_head();
        CHECK(disk.status("state/head.log.broken"));
        auto back = until([&] { return c.head().status().nodes.size() == 1; }, "the node");
        co_await back;
        CHECK(c.head().status().generation == 1); // of another log: nobody is fenced by it
    });
}

TEST_CASE("a head whose log ends in the middle of a record says what it leaves out", "[H6]") {
    const test::log_lines lines("head");
    with_state(7, 1, [&lines](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        auto draining = test::ask_drain(&c, drain_of("n1", true));
        (void)co_await draining;
        auto died = c.kill_head();
        co_await died;
        const auto bytes = disk.read_whole("state/head.log", 1 << 20).value();
        REQUIRE(disk.flip_bit("state/head.log", 8 * bytes.size() - 1));
        c.start_head();
        INFO(lines.text());
        CHECK(lines.count("the last record of the state is left out") == 1);
        CHECK(lines.count("bytes of state/head.log, from offset ") == 1);
        auto again = c.kill_head();
        co_await again;
        c.start_head(); // the next one has nothing to say: the log was written anew
        CHECK(lines.count("the last record of the state is left out") == 1);
    });
}

TEST_CASE("the log of a cluster with another token is refused", "[H6]") {
    sim::loop loop(7);
    sim::network network(loop, sim::faults{});
    sim::disk disk;
    const auto make = [&] {
        cluster::head_options how;
        how.listen = net::address::sim("head", 0);
        how.secret = net::token::generate(loop.random());
        how.log = std::make_shared<head_log>(disk, "state");
        const cluster::head h(loop, network.host("head"), how);
    };
    make();
    try {
        make();
        FAIL("another cluster's state was taken");
    } catch (const error& e) {
        CHECK(e.code() == errc::mismatch);
        CHECK_THAT(e.what(), ContainsSubstring("another token"));
    }
}

namespace {

/// The log's next replacement gets its name, and then the disk does not say that it is durable.
constexpr std::uint64_t sync_of_folder = 4;

task<void> node_is_back(test::sim_nodes* c) {
    auto back = until([c] { return c->head().status().nodes.size() == 1; }, "the node");
    co_await back;
}

task<void> restart_head(test::sim_nodes* c, sim::disk* on) {
    auto died = c->kill_head();
    co_await died;
    c->head_disk = on;
    c->start_head();
}

} // namespace

TEST_CASE("a generation that a power loss takes back locks nobody out", "[H7]") {
    with_state(12, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        for (const std::uint64_t generation : {2, 3}) {
            auto died = c.kill_head();
            co_await died;
            disk.options().io_error = 0;
            disk.fail_once(sync_of_folder, errc::io);
            c.start_head();
            disk.options().io_error = 1; // and no second try helps
            auto joined = node_is_back(&c);
            co_await joined;
            const auto s = c.head().status();
            CHECK(s.generation == generation);
            REQUIRE(!s.trouble.empty()); // the node has come to a head whose generation may be lost
        }
        auto last = c.kill_head();
        co_await last;
        const auto after = disk.crash(sim::crash_mode::only_synced);
        c.head_disk = after.get();
        c.start_head();
        CHECK(c.head().status().generation == 2);
        auto home = node_is_back(&c);
        co_await home;
        auto fourth = c.kill_head(); // the disks that outlive it are the world's
        co_await fourth;
        c.head_disk = &disk;
        disk.options().io_error = 0;
        c.start_head();
        auto again = node_is_back(&c);
        co_await again;
    });
}

TEST_CASE("a head whose generation gets durable later tells it from then on", "[H7]") {
    with_state(13, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        const auto older = disk.crash(sim::crash_mode::all_written);
        auto first = c.kill_head();
        co_await first;
        c.start_head();
        auto second = c.kill_head();
        co_await second;
        disk.fail_once(sync_of_folder, errc::io);
        c.start_head(); // 3
        REQUIRE(!c.head().status().trouble.empty());
        auto mended = until([&] { return c.head().status().trouble.empty(); }, "a written log");
        co_await mended;
        auto node_died = c.kill_agent(c.at(0));
        co_await node_died;
        c.start_agent(c.at(0)); // knows no head but this one
        auto joined = node_is_back(&c);
        co_await joined;
        auto third = restart_head(&c, older.get()); // 2 after 3
        co_await third;
        CHECK(c.head().status().generation == 2);
        co_await sleep_for(10s);
        CHECK(c.head().status().nodes.empty());
        auto fourth = restart_head(&c, &disk);
        co_await fourth;
        auto home = node_is_back(&c);
        co_await home;
    });
}

TEST_CASE("nodes refuse an older head than the one they knew", "[H7]") {
    with_state(8, 1, [](test::sim_nodes& c, sim::disk& disk) -> task<void> {
        const auto copy = disk.crash(sim::crash_mode::all_written); // as a failover copies it
        auto died = c.kill_head();
        co_await died;
        c.start_head();
        auto joined = node_is_back(&c);
        co_await joined;
        CHECK(c.head().status().generation == 2);
        auto newer_died = restart_head(&c, copy.get());
        co_await newer_died;
        CHECK(c.head().status().generation == 2); // as new as the one it knew: taken
        auto same = node_is_back(&c);
        co_await same;
        auto third = c.kill_head();
        co_await third;
        c.start_head(); // 3
        auto newest = node_is_back(&c);
        co_await newest;
        auto last = c.kill_head();
        co_await last;
        c.head_disk = &disk; // whose head has begun twice
        disk.crash();
        const auto stale = disk.crash(sim::crash_mode::all_written);
        c.start_head(); // 3: not older
        auto taken = node_is_back(&c);
        co_await taken;
        auto fourth = c.kill_head();
        co_await fourth;
        c.start_head(); // 4
        auto again = node_is_back(&c);
        co_await again;
        auto fifth = restart_head(&c, stale.get()); // 3 after 4
        co_await fifth;
        CHECK(c.head().status().generation == 3);
        co_await sleep_for(10s);
        CHECK(c.head().status().nodes.empty());
        auto sixth = restart_head(&c, &disk); // 5
        co_await sixth;
        auto home = node_is_back(&c);
        co_await home;
    });
}

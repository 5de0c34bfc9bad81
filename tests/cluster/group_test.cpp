// SPDX-License-Identifier: Apache-2.0
// The group protocol on the simulated network without faults, case by case; under faults it runs in
// tests/sim/cluster_group_scenario.cpp.
#include <skein/cluster/group.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

struct world {
    sim::loop loop{7};
    sim::network network{loop, {}};
    net::token secret = net::token::generate(loop.random());

    net::network& host(int rank) { return network.host("r" + std::to_string(rank)); }
    group_options options(int n) const {
        group_options o;
        o.world_size = n;
        o.generation = 5;
        o.secret = secret;
        o.join_deadline = 10s;
        return o;
    }
};

/// What one rank does with its client; errors are kept.
using life = std::function<task<void>(group_client&)>;

struct rank_end {
    std::optional<error> why;
    int told_rank = -2;
    std::string told;
};

task<void> live(world* w, int rank, int n, net::address at, life what, rank_end* end) {
    member_info self;
    self.rank = rank;
    self.world_size = n;
    self.host = "r" + std::to_string(rank);
    self.pid = 100 + rank;
    std::unique_ptr<group_client> client;
    try {
        auto joined = group_client::join(w->host(rank), at, self, w->options(n),
                                         [end](int who, const error& why) {
                                             end->told_rank = who;
                                             end->told = why.what();
                                         });
        client = co_await joined;
        auto lived = what(*client);
        co_await lived;
    } catch (const error& e) {
        end->why = e;
    }
    if (!client) co_return;
    auto gone = end->why ? client->fail(*end->why) : client->leave();
    co_await gone;
}

task<group_outcome> serve(group_server* server) {
    auto run = server->run();
    co_return co_await run;
}
task<void> serve_into(group_server* server, std::optional<group_outcome>* out) {
    auto run = serve(server);
    *out = co_await run;
}

/// Runs one group of the given lives; ranks without a life never come.
task<group_outcome> hold_group(world* w, int n, std::vector<life> lives,
                               std::vector<rank_end>* ends) {
    group_server server(w->network.host("boss"), net::address::sim("boss", 0), w->options(n));
    std::optional<group_outcome> outcome;
    scope all;
    all.spawn(serve_into(&server, &outcome));
    for (std::size_t r = 0; r < lives.size(); ++r) {
        if (lives[r])
            all.spawn(live(w, static_cast<int>(r), n, server.local(), lives[r], &(*ends)[r]));
    }
    auto joined = all.join();
    co_await joined;
    co_return *outcome;
}

struct held {
    group_outcome outcome;
    std::vector<rank_end> ends;
    double seconds = 0;
};

held hold(std::vector<life> lives, world& w) {
    held h;
    h.ends.resize(lives.size());
    const int n = static_cast<int>(lives.size());
    h.outcome = w.loop.run(hold_group(&w, n, std::move(lives), &h.ends));
    h.seconds = to_seconds(w.loop.elapsed());
    return h;
}

task<void> exchange_name(group_client& c) {
    auto exchanged =
        c.exchange("name", to_buffer(as_bytes(std::string_view("abc").substr(c.self().rank, 1))));
    const auto all = co_await exchanged;
    std::string text;
    for (const auto& blob : all) text += to_string(blob);
    if (text != std::string_view("abc").substr(0, all.size()))
        throw error(errc::internal, "got " + text);
}
task<void> do_nothing(group_client&) { co_return; }
task<void> throw_disk_full(group_client&) {
    throw error(errc::disk_full, "no space for a checkpoint").with_hint("make room");
    co_return;
}
task<void> wait_for_ever(group_client& c) {
    auto exchanged = c.exchange("only rank " + std::to_string(c.self().rank), {});
    (void)co_await exchanged;
}
task<void> exchange_twice(group_client& c) {
    auto once = c.exchange("k", {});
    (void)co_await once;
    auto name = exchange_name(c);
    co_await name;
}

} // namespace

TEST_CASE("ranks exchange blobs in rank order and leave") {
    world w;
    const auto h = hold({exchange_name, exchange_name, exchange_name}, w);
    CHECK_FALSE(h.outcome.failure);
    for (const auto& e : h.ends) CHECK_FALSE(e.why);
    CHECK(h.seconds < 5);
}

TEST_CASE("exchanges of different keys do not mix") {
    world w;
    const auto h = hold({exchange_twice, exchange_twice}, w);
    CHECK_FALSE(h.outcome.failure);
}

TEST_CASE("a group of one forms at once") {
    world w;
    CHECK_FALSE(hold({exchange_name}, w).outcome.failure);
}

TEST_CASE("a rank that fails tells its code, text and hint to all others") {
    world w;
    const auto h = hold({wait_for_ever, throw_disk_full, wait_for_ever}, w);
    REQUIRE(h.outcome.failure);
    CHECK(h.outcome.culprit == 1);
    CHECK(h.outcome.reported);
    CHECK(h.outcome.failure->code() == errc::disk_full);
    for (const int r : {0, 2}) {
        const auto& e = h.ends[static_cast<std::size_t>(r)];
        REQUIRE(e.why);
        CHECK(e.why->code() == errc::disk_full);
        CHECK(e.told_rank == 1);
        CHECK_THAT(e.told, ContainsSubstring("no space for a checkpoint; make room"));
    }
}

TEST_CASE("a rank that does not come is named at the deadline") {
    world w;
    const auto h = hold({do_nothing, life{}, do_nothing}, w);
    REQUIRE(h.outcome.failure);
    CHECK(h.outcome.failure->code() == errc::timeout);
    CHECK_THAT(h.outcome.failure->what(), ContainsSubstring("rank 1 of 3"));
    REQUIRE(h.ends[0].why);
    CHECK(h.seconds >= 10);
    CHECK(h.seconds < 25);
}

namespace {
task<void> crash_after(world* w, std::string host, duration when, bool loudly) {
    co_await sleep_for(when);
    w->network.crash(host, loudly);
}
task<group_outcome> hold_and_crash(world* w, std::vector<life> lives, std::vector<rank_end>* ends,
                                   bool loudly) {
    scope crash;
    crash.spawn(crash_after(w, "r1", 2s, loudly));
    const int n = static_cast<int>(lives.size()); // before the move: arguments have no order
    auto group = hold_group(w, n, std::move(lives), ends);
    const auto outcome = co_await group;
    auto joined = crash.join();
    co_await joined;
    co_return outcome;
}
} // namespace

TEST_CASE("a rank whose process dies is lost within moments") {
    world w;
    std::vector<rank_end> ends(3);
    const auto outcome =
        w.loop.run(hold_and_crash(&w, {wait_for_ever, wait_for_ever, wait_for_ever}, &ends, true));
    REQUIRE(outcome.failure);
    CHECK(outcome.culprit == 1);
    CHECK_FALSE(outcome.reported);
    CHECK(outcome.failure->code() == errc::peer_lost);
    CHECK_THAT(outcome.failure->what(), ContainsSubstring("rank 1 (pid 101 at r1)"));
    CHECK(ends[0].told_rank == 1);
}

TEST_CASE("a rank whose host vanishes is lost after three seconds of silence") {
    world w;
    std::vector<rank_end> ends(2);
    const auto outcome =
        w.loop.run(hold_and_crash(&w, {wait_for_ever, wait_for_ever}, &ends, false));
    REQUIRE(outcome.failure);
    CHECK(outcome.culprit == 1);
    CHECK(to_seconds(w.loop.elapsed()) < 12);
}

TEST_CASE("a rank with another idea of the world is refused and does not end the group") {
    world w;
    std::optional<group_outcome> outcome;
    rank_end stranger, twin, good_0, good_1;
    auto all = [](world* w, std::optional<group_outcome>* outcome, rank_end* stranger,
                  rank_end* twin, rank_end* good_0, rank_end* good_1) -> task<void> {
        group_server server(w->network.host("boss"), net::address::sim("boss", 0), w->options(2));
        scope ranks, serving;
        serving.spawn(serve_into(&server, outcome));
        const auto at = server.local();
        ranks.spawn(live(w, 0, 3, at, do_nothing, stranger)); // thinks of three
        auto first = ranks.join();
        co_await first;
        ranks.spawn(live(w, 0, 2, at, exchange_name, good_0));
        co_await sleep_for(1s);
        ranks.spawn(live(w, 0, 2, at, do_nothing, twin)); // rank 0 is taken
        co_await sleep_for(1s);
        ranks.spawn(live(w, 1, 2, at, exchange_name, good_1));
        auto rest = ranks.join();
        co_await rest;
        auto served = serving.join();
        co_await served;
    };
    w.loop.run(all(&w, &outcome, &stranger, &twin, &good_0, &good_1));
    REQUIRE(stranger.why);
    CHECK(stranger.why->code() == errc::mismatch);
    REQUIRE(twin.why);
    CHECK(twin.why->code() == errc::already_exists);
    CHECK_FALSE(good_0.why);
    CHECK_FALSE(good_1.why);
    CHECK_FALSE(outcome->failure);
}

TEST_CASE("a rank with another token is refused and does not end the group") {
    world w, other;
    std::optional<group_outcome> outcome;
    rank_end bad, good;
    auto all = [](world* w, net::token wrong, std::optional<group_outcome>* outcome, rank_end* bad,
                  rank_end* good) -> task<void> {
        group_server server(w->network.host("boss"), net::address::sim("boss", 0), w->options(1));
        scope serving, ranks;
        serving.spawn(serve_into(&server, outcome));
        const auto right = std::exchange(w->secret, wrong);
        ranks.spawn(live(w, 0, 1, server.local(), do_nothing, bad));
        auto first = ranks.join();
        co_await first;
        w->secret = right;
        ranks.spawn(live(w, 0, 1, server.local(), exchange_name, good));
        auto second = ranks.join();
        co_await second;
        auto served = serving.join();
        co_await served;
    };
    net::token wrong = net::token::from_hex(std::string(64, '3')).value();
    w.loop.run(all(&w, wrong, &outcome, &bad, &good));
    REQUIRE(bad.why);
    CHECK(bad.why->code() == errc::permission_denied);
    CHECK_FALSE(good.why);
    CHECK_FALSE(outcome->failure);
}

TEST_CASE("aborting a group tells the ranks why") {
    world w;
    std::optional<group_outcome> outcome;
    rank_end end;
    auto all = [](world* w, std::optional<group_outcome>* outcome, rank_end* end) -> task<void> {
        group_server server(w->network.host("boss"), net::address::sim("boss", 0), w->options(2));
        scope tasks;
        tasks.spawn(serve_into(&server, outcome));
        tasks.spawn(live(w, 0, 2, server.local(), do_nothing, end));
        co_await sleep_for(1s);
        server.abort(error(errc::worker_lost, "worker 1 exited with 3"), 1);
        auto joined = tasks.join();
        co_await joined;
    };
    w.loop.run(all(&w, &outcome, &end));
    REQUIRE(end.why);
    CHECK(end.why->code() == errc::worker_lost);
    CHECK(outcome->culprit == 1);
}

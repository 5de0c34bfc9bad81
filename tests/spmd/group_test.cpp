// SPDX-License-Identifier: Apache-2.0
// The group protocol on the simulated network without faults, case by case; under faults it runs in
// tests/sim/cluster_group_scenario.cpp.
#include <skein/spmd/group.hpp>

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
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
using namespace skein::spmd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

struct world {
    sim::loop loop{7};
    sim::network network{loop, {}};
    net::token secret = net::token::generate(loop.random());

    net::network& host(int rank) { return network.host("r" + std::to_string(rank)); }
    spmd::group_options options(int n) const {
        spmd::group_options o;
        o.world_size = n;
        o.generation = 5;
        o.secret = secret;
        o.join_deadline = 10s;
        return o;
    }
};

/// What one rank does with its client; errors are kept.
using life = std::function<task<void>(spmd::group_client&)>;

struct rank_end {
    std::optional<error> why;
    int told_rank = -2;
    std::string told;
};

task<void> live(world* w, int rank, int n, net::address at, life what, rank_end* end) {
    spmd::member_info self;
    self.rank = rank;
    self.world_size = n;
    self.host = "r" + std::to_string(rank);
    self.pid = 100 + rank;
    std::unique_ptr<spmd::group_client> client;
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

task<spmd::group_outcome> serve(spmd::group_server* server) {
    auto run = server->run();
    co_return co_await run;
}
task<void> serve_into(spmd::group_server* server, std::optional<spmd::group_outcome>* out) {
    auto run = serve(server);
    *out = co_await run;
}

/// Runs one group of the given lives; ranks without a life never come.
task<spmd::group_outcome> hold_group(world* w, int n, std::vector<life> lives,
                                     std::vector<rank_end>* ends) {
    spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0), w->options(n));
    std::optional<spmd::group_outcome> outcome;
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
    spmd::group_outcome outcome;
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

task<void> exchange_name(spmd::group_client& c) {
    auto exchanged =
        c.exchange("name", to_buffer(as_bytes(std::string_view("abc").substr(c.self().rank, 1))));
    const auto all = co_await exchanged;
    std::string text;
    for (const auto& blob : all) text += to_string(blob);
    if (text != std::string_view("abc").substr(0, all.size()))
        throw error(errc::internal, "got " + text);
}
task<void> do_nothing(spmd::group_client&) { co_return; }
task<void> throw_disk_full(spmd::group_client&) {
    throw error(errc::disk_full, "no space for a checkpoint").with_hint("make room");
    co_return;
}
task<void> wait_for_ever(spmd::group_client& c) {
    auto exchanged = c.exchange("only rank " + std::to_string(c.self().rank), {});
    (void)co_await exchanged;
}
task<void> exchange_twice(spmd::group_client& c) {
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
task<spmd::group_outcome> hold_and_crash(world* w, std::vector<life> lives,
                                         std::vector<rank_end>* ends, bool loudly) {
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
    std::optional<spmd::group_outcome> outcome;
    rank_end stranger, twin, good_0, good_1;
    auto all = [](world* w, std::optional<spmd::group_outcome>* outcome, rank_end* stranger,
                  rank_end* twin, rank_end* good_0, rank_end* good_1) -> task<void> {
        spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                                  w->options(2));
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
    std::optional<spmd::group_outcome> outcome;
    rank_end bad, good;
    auto all = [](world* w, net::token wrong, std::optional<spmd::group_outcome>* outcome,
                  rank_end* bad, rank_end* good) -> task<void> {
        spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                                  w->options(1));
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
    std::optional<spmd::group_outcome> outcome;
    rank_end end;
    auto all = [](world* w, std::optional<spmd::group_outcome>* outcome,
                  rank_end* end) -> task<void> {
        spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                                  w->options(2));
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

TEST_CASE(
    "a rank whose server ends without a word hears of a lost peer, whatever it does just then") {
    world w;
    rank_end end;
    auto all = [](world* w, rank_end* end) -> task<void> {
        scope serving;
        scope tasks;
        std::optional<spmd::group_outcome> outcome;
        {
            spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                                      w->options(1));
            serving.spawn(serve_into(&server, &outcome));
            tasks.spawn(live(
                w, 0, 1, server.local(),
                [](spmd::group_client& c) -> task<void> {
                    for (;;) { // in each turn of the loop, also the one in which the link ends
                        for (int turn = 0; turn < 20; ++turn) {
                            c.tell("k", {});
                            co_await yield();
                        }
                        co_await sleep_for(50us);
                    }
                },
                end));
            co_await sleep_for(10ms);
            serving.cancel();
            auto ended = serving.join();
            co_await ended;
        }
        auto joined = tasks.join();
        co_await joined;
    };
    w.loop.run(all(&w, &end));
    REQUIRE(end.why);
    CHECK(end.why->code() == errc::peer_lost);
}

namespace {

/// One rank with options of its own: joins, exchanges its name, leaves.
task<void> come_with(world* w, int rank, spmd::group_options options, net::address at,
                     rank_end* end) {
    spmd::member_info self;
    self.rank = rank;
    self.world_size = options.world_size;
    self.host = "r" + std::to_string(rank);
    std::unique_ptr<spmd::group_client> client;
    try {
        auto joined = group_client::join(w->host(rank), at, self, options, {});
        client = co_await joined;
        auto lived = exchange_name(*client);
        co_await lived;
        auto left = client->leave();
        co_await left;
    } catch (const error& e) {
        end->why = e;
    }
}

struct visit {
    int rank = 0;
    spmd::group_options options;
};
struct visited {
    spmd::group_outcome outcome;
    std::vector<rank_end> ends;
};

task<void> receive_visits(world* w, spmd::group_options server_options, std::vector<visit> visits,
                          visited* seen) {
    spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                              std::move(server_options));
    std::optional<spmd::group_outcome> outcome;
    scope serving, ranks;
    serving.spawn(serve_into(&server, &outcome));
    for (std::size_t i = 0; i < visits.size(); ++i) {
        ranks.spawn(
            come_with(w, visits[i].rank, visits[i].options, server.local(), &seen->ends[i]));
        co_await sleep_for(100ms); // one after the other
    }
    auto came = ranks.join();
    co_await came;
    auto served = serving.join();
    co_await served;
    seen->outcome = *outcome;
}

/// Ranks knock in this order.
visited receive(world& w, spmd::group_options server_options, std::vector<visit> visits) {
    visited seen;
    seen.ends.resize(visits.size());
    w.loop.run(receive_visits(&w, std::move(server_options), std::move(visits), &seen));
    return seen;
}

} // namespace

TEST_CASE("a rank of another job is refused, and both jobs are named") {
    world w;
    auto ours = w.options(2), theirs = w.options(2);
    ours.job = "jobA";
    theirs.job = "jobB";
    const auto seen = receive(w, ours, {{0, ours}, {1, theirs}, {1, ours}});
    CHECK_FALSE(seen.outcome.failure);
    REQUIRE(seen.ends[1].why);
    CHECK(seen.ends[1].why->code() == errc::mismatch);
    CHECK_THAT(seen.ends[1].why->what(),
               ContainsSubstring("'jobA'") && ContainsSubstring("'jobB'"));
    CHECK_FALSE(seen.ends[2].why);
}

TEST_CASE("a rank of an earlier attempt is refused, and both attempts are named") {
    world w;
    auto now = w.options(2), before = w.options(2);
    now.generation = 7;
    before.generation = 6;
    const auto seen = receive(w, now, {{1, before}, {0, now}, {1, now}});
    CHECK_FALSE(seen.outcome.failure);
    REQUIRE(seen.ends[0].why);
    CHECK(seen.ends[0].why->code() == errc::mismatch);
    CHECK_THAT(seen.ends[0].why->what(),
               ContainsSubstring("attempt 6") && ContainsSubstring("attempt 7"));
}

TEST_CASE("a rank of the job with another setting ends the group, and every rank hears which") {
    world w;
    auto good = w.options(3), odd = w.options(3);
    good.settings = {{"seed", "1"}, {"lr", "0.003"}};
    odd.settings = {{"seed", "1"}, {"lr", "0.1"}};
    const auto seen = receive(w, good, {{0, good}, {2, odd}, {1, good}});
    REQUIRE(seen.outcome.failure);
    CHECK(seen.outcome.failure->code() == errc::mismatch);
    CHECK(seen.outcome.culprit == 2);
    for (const int end : {0, 1}) {
        REQUIRE(seen.ends[static_cast<std::size_t>(end)].why);
        CHECK_THAT(seen.ends[static_cast<std::size_t>(end)].why->what(),
                   ContainsSubstring("rank 2 has lr 0.1, rank 0 has 0.003") &&
                       !ContainsSubstring("seed"));
    }
    CHECK(to_seconds(w.loop.elapsed()) < 40);
}

TEST_CASE("a server without settings of its own takes those of the first rank") {
    world w;
    auto good = w.options(2), odd = w.options(2);
    good.settings = {{"batch", "16"}};
    odd.settings = {{"batch", "32"}};
    CHECK_FALSE(receive(w, w.options(2), {{1, good}, {0, good}}).outcome.failure);
    world v;
    good.secret = odd.secret = v.secret;
    const auto seen = receive(v, v.options(2), {{1, good}, {0, odd}});
    REQUIRE(seen.outcome.failure);
    CHECK_THAT(seen.outcome.failure->what(),
               ContainsSubstring("rank 0 has batch 32, rank 1 has 16"));
}

TEST_CASE("a failure keeps its place, cause and hint on its way to the other ranks") {
    world w;
    const auto fails = [](spmd::group_client&) -> task<void> {
        throw error(errc::io, "write failed")
            .with_where("step 7")
            .with_cause("disk on fire")
            .with_hint("call somebody");
        co_return;
    };
    const auto h = hold({fails, wait_for_ever}, w);
    REQUIRE(h.ends[1].why);
    CHECK(h.ends[1].why->text() == "write failed");
    CHECK(h.ends[1].why->where() == "step 7");
    CHECK(h.ends[1].why->cause() == "disk on fire");
    CHECK(h.ends[1].why->hint() == "call somebody");
}

TEST_CASE("a group that other hosts can reach needs a token") {
    world w;
    auto options = w.options(1);
    options.secret = {};
    try {
        spmd::group_server server(w.network.host("boss"), net::address::tcp("0.0.0.0", 0), options);
        FAIL("no error");
    } catch (const error& e) {
        CHECK(e.code() == errc::permission_denied);
        CHECK_THAT(e.what(), ContainsSubstring("SKEIN_TOKEN"));
    }
    rank_end end;
    w.loop.run(come_with(&w, 0, options, net::address::tcp("node-1", 6000), &end));
    REQUIRE(end.why);
    CHECK(end.why->code() == errc::permission_denied);
}

namespace {
task<void> give_up_after(world* w, duration when, net::address at, rank_end* end) {
    cancel_source stop;
    auto coming = come_with(w, 0, w->options(2), at, end);
    auto work = with_cancel(stop.token(), std::move(coming));
    scope both;
    both.spawn(std::move(work));
    co_await sleep_for(when);
    stop.request();
    auto joined = both.join();
    co_await joined;
}
} // namespace

TEST_CASE("a rank that gives up while the ranks meet says so") {
    world w;
    visited seen;
    rank_end end;
    auto all = [](world* w, visited* seen, rank_end* end) -> task<void> {
        spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                                  w->options(2));
        std::optional<spmd::group_outcome> outcome;
        scope serving;
        serving.spawn(serve_into(&server, &outcome));
        auto giving_up = give_up_after(w, 1s, server.local(), end);
        co_await giving_up;
        auto served = serving.join();
        co_await served;
        seen->outcome = *outcome;
    };
    w.loop.run(all(&w, &seen, &end));
    REQUIRE(end.why);
    CHECK(end.why->code() == errc::cancelled);
    REQUIRE(seen.outcome.failure);
    CHECK(seen.outcome.reported);
    CHECK(seen.outcome.culprit == 0);
    CHECK(to_seconds(w.loop.elapsed()) < 5);
}

namespace {

/// A host whose listeners fail so many accepts, as one without free descriptors does.
class starved_host final : public net::network {
public:
    starved_host(net::network& real, int failures) : real_(real), failures_(failures) {}
    task<std::unique_ptr<net::stream>> connect(net::address to) override {
        return real_.connect(std::move(to));
    }
    std::unique_ptr<net::listener> listen(net::address at) override {
        return std::make_unique<starved_listener>(real_.listen(std::move(at)), &failures_);
    }
    [[nodiscard]] int failures_left() const { return failures_; }

private:
    class starved_listener final : public net::listener {
    public:
        starved_listener(std::unique_ptr<net::listener> real, int* failures)
            : real_(std::move(real)), failures_(failures) {}
        task<std::unique_ptr<net::stream>> accept() override {
            auto accepting = real_->accept();
            auto next = co_await accepting;
            if (*failures_ > 0 && --*failures_ >= 0)
                throw error(errc::exhausted, "accept: too many open files");
            co_return next;
        }
        net::address local() const override { return real_->local(); }
        void close() noexcept override { real_->close(); }

    private:
        std::unique_ptr<net::listener> real_;
        int* failures_;
    };
    net::network& real_;
    int failures_;
};

task<void> knock_and_fail(world* w, net::address at, int times) {
    for (int i = 0; i < times; ++i) {
        auto knocking = w->host(9).connect(at);
        const auto stranger = co_await knocking;
        co_await sleep_for(200ms);
    }
}

} // namespace

TEST_CASE("accepts that fail in the middle of the work end no group") {
    world w;
    starved_host boss(w.network.host("boss"), 5);
    std::optional<spmd::group_outcome> outcome;
    std::vector<rank_end> ends(2);
    auto all = [](world* w, starved_host* boss, std::optional<spmd::group_outcome>* outcome,
                  std::vector<rank_end>* ends) -> task<void> {
        spmd::group_server server(*boss, net::address::sim("boss", 0), w->options(2));
        scope serving, ranks;
        serving.spawn(serve_into(&server, outcome));
        const auto at = server.local();
        auto knocking = knock_and_fail(w, at, 3); // three fail before the ranks come
        co_await knocking;
        for (int r = 0; r < 2; ++r) { // their first tries fail, too
            ranks.spawn(live(w, r, 2, at, exchange_twice, &(*ends)[static_cast<std::size_t>(r)]));
        }
        auto joined = ranks.join();
        co_await joined;
        auto served = serving.join();
        co_await served;
    };
    w.loop.run(all(&w, &boss, &outcome, &ends));
    CHECK(boss.failures_left() == 0);
    CHECK_FALSE(outcome->failure);
    for (const auto& e : ends) CHECK_FALSE(e.why);
}

namespace {
/// Keeps a connection open without a word, and opens another when it is dropped.
task<void> sit_idle(world* w, net::address at, bool* over) {
    while (!*over) {
        try {
            auto knocking = w->host(9).connect(at);
            const auto stranger = co_await knocking;
            byte_buffer into(16);
            auto reading = stranger->read_some(into);
            (void)co_await reading;
        } catch (const error&) { // it is over
        }
        co_await sleep_for(1ms);
    }
}
} // namespace

TEST_CASE("eighty idle strangers, who come again when they are dropped, keep no rank out") {
    world w;
    std::optional<spmd::group_outcome> outcome;
    std::vector<rank_end> ends(2);
    auto all = [](world* w, std::optional<spmd::group_outcome>* outcome,
                  std::vector<rank_end>* ends) -> task<void> {
        spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0),
                                  w->options(2));
        scope serving, ranks, strangers;
        bool over = false;
        serving.spawn(serve_into(&server, outcome));
        const auto at = server.local();
        for (int i = 0; i < 80; ++i) strangers.spawn(sit_idle(w, at, &over));
        co_await sleep_for(1s);
        for (int r = 0; r < 2; ++r) {
            ranks.spawn(live(w, r, 2, at, exchange_name, &(*ends)[static_cast<std::size_t>(r)]));
        }
        auto joined = ranks.join();
        co_await joined;
        over = true;
        auto served = serving.join();
        co_await served;
        strangers.cancel();
        auto gone = as_result(strangers.join());
        (void)co_await gone;
    };
    w.loop.run(all(&w, &outcome, &ends));
    CHECK_FALSE(outcome->failure);
    for (const auto& e : ends) CHECK_FALSE(e.why);
    CHECK(to_seconds(w.loop.elapsed()) < 10);
}

namespace {
/// One group whose server gives and hears.
held hold_talking(std::vector<life> lives, std::size_t most_told) {
    world w;
    held h;
    h.ends.resize(lives.size());
    auto all = [](world* w, std::vector<life> lives, std::size_t most_told, held* h) -> task<void> {
        const int n = static_cast<int>(lives.size());
        auto options = w->options(n);
        options.given = to_buffer(as_bytes("orders"));
        options.most_told = most_told;
        spmd::group_server server(w->network.host("boss"), net::address::sim("boss", 0), options);
        std::optional<spmd::group_outcome> outcome;
        scope parts;
        parts.spawn(serve_into(&server, &outcome));
        for (int r = 0; r < n; ++r)
            parts.spawn(live(w, r, n, server.local(), lives[static_cast<std::size_t>(r)],
                             &h->ends[static_cast<std::size_t>(r)]));
        auto joined = parts.join();
        co_await joined;
        h->outcome = *outcome;
    };
    w.loop.run(all(&w, std::move(lives), most_told, &h));
    return h;
}
task<void> takes_orders(spmd::group_client& me) {
    CHECK(as_text(me.given()) == "orders");
    co_return;
}
task<void> tells_twice(spmd::group_client& me) {
    auto taken = takes_orders(me);
    co_await taken;
    me.tell("state", to_buffer(as_bytes("half")));
    me.tell("state", to_buffer(as_bytes("done")));
    me.tell("value", to_buffer(as_bytes("42")));
}
} // namespace

TEST_CASE("the server gives every rank its orders, and rank 0's words are in the outcome") {
    const auto h = hold_talking({tells_twice, takes_orders, takes_orders}, 64);
    CHECK_FALSE(h.outcome.failure);
    REQUIRE(h.outcome.told.size() == 2);
    CHECK(as_text(h.outcome.told.at("state")) == "done"); // the newest of a key
    CHECK(as_text(h.outcome.told.at("value")) == "42");
}

TEST_CASE("rank 0 that tells more than is taken ends the group, and another rank may not tell") {
    const auto much = hold_talking({tells_twice, takes_orders}, 12);
    REQUIRE(much.outcome.failure);
    CHECK(much.outcome.culprit == 0);
    CHECK_THAT(much.outcome.failure->what(),
               ContainsSubstring("rank 0 tells 16 bytes with 'value', the limit is 12"));
    CHECK(as_text(much.outcome.told.at("state")) == "done");
    const auto other = hold_talking({takes_orders, tells_twice}, 64);
    REQUIRE(other.ends[1].why);
    CHECK(other.ends[1].why->code() == errc::usage);
    CHECK_THAT(other.ends[1].why->what(), ContainsSubstring("rank 1 tells 'state'"));
}

// SPDX-License-Identifier: Apache-2.0
// Which keys may say what to a head: the table, each message with each kind of key at a head that
// runs, and whose things they reach.
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/order_keys.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/cluster/rights.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/timeout.hpp>
#include <skein/core/type_name.hpp>
#include <skein/net/requests.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/remote.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using net::key_kind;

namespace rights_test {

constexpr auto prefix = std::string_view("SKEIN_TOKEN=");

struct tally {
    int n = 0;
    int add(int k) { return n += k; }
    int save() const { return n; }
    void load(int saved) { n = saved; }
};
int twice(int n) { return 2 * n; }

/// A job that stays until it is stopped, and prints the environment that it has.
cluster::job_request staying(std::string id, std::uint32_t retries = 0) {
    cluster::job_request what;
    what.id = std::move(id);
    what.command = {"/bin/sh", "env", "sleep", "100000000"};
    what.demand = "cpu=1";
    what.retries = retries;
    return what;
}

/// A head with one job or two that run, and their keys.
struct world {
    test::sim_nodes& c;
    test::sim_jobs& jobs;

    [[nodiscard]] net::token key(key_kind kind, std::uint64_t number = 0) const {
        return c.secret().derive({kind, number});
    }
    /// The key that the entry process of a job has found in its environment.
    static task<net::token> begin(world* w, std::string id, std::uint64_t after = 0) {
        if (after == 0) {
            auto submitting = w->jobs.submit(staying(id));
            (void)co_await submitting;
        }
        for (std::uint64_t from = after + 1;;) {
            auto reading = w->jobs.lines(id, from);
            const auto said = co_await reading;
            for (const auto& line : said.lines)
                if (line.text.starts_with(prefix))
                    co_return net::token::from_text(line.text.substr(prefix.size())).value();
            from = said.first + said.lines.size();
        }
    }
    /// As a tool with that key.
    [[nodiscard]] cluster::tool_options with(const net::token& key) const {
        auto how = jobs.as_tool();
        how.secret = key;
        return how;
    }
    template <class Reply, class M>
    static task<result<Reply>> ask(world* w, net::token key, M what) {
        auto asking = as_result(
            cluster::detail::ask_head<Reply>(&w->jobs.tool(), w->with(key), std::move(what)));
        co_return co_await asking;
    }
};

/// Runs body(world) with a head and a node of so many cpus.
template <class Body>
void in_world(Body body, int cpus = 4) {
    test::sim_jobs jobs;
    test::in_world_of_nodes(1, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.start_head();
        jobs.attach(c);
        jobs.add_node(cpus);
        auto there = jobs.until_nodes(1);
        co_await there;
        world w{c, jobs};
        auto rest = body(&w);
        co_await rest;
    });
}

/// Over a link of its own; the error of a head, if it gives one.
task<std::optional<error>> say(world* w, net::token key, std::uint64_t incarnation,
                               std::uint16_t number, byte_buffer body) {
    net::link_options once;
    once.resume = net::resume_mode::off;
    once.incarnation = incarnation;
    auto dialing = net::link::connect(w->jobs.tool(), test::sim_nodes::head_address(),
                                      cluster::detail::cluster_link(key, "peer", "tool", 1), once);
    const auto way = net::requests::over(co_await dialing);
    auto asking = as_result(with_timeout(way->call_raw(number, std::move(body), {}), 60s));
    const auto got = co_await asking;
    auto closing = shield(way->close());
    co_await closing;
    if (got) co_return std::nullopt;
    co_return got.error();
}

/// One that the table does not have.
struct message_of_tomorrow {
    static constexpr std::uint16_t number = 60'000;
};
static_assert(cluster::detail::all_have_rights(cluster::cluster_messages()));
static_assert(!cluster::detail::all_have_rights(net::message_table<message_of_tomorrow>()));

struct sample {
    std::uint16_t number;
    std::string name;
    byte_buffer body;
};
template <class... M>
std::vector<sample> samples_of(net::message_table<M...>) {
    return {{M::number, std::string(type_name(typeid(M))), wire::encode(M{})}...};
}

/// What each kind may say, by the numbers of messages: written down a second time, by hand.
const std::map<key_kind, std::set<std::uint16_t>>& expected() {
    static const std::map<key_kind, std::set<std::uint16_t>> all = {
        {key_kind::cluster,
         {1,  3,   5,   6,   13,  15,  17,  19,  22,  23,  24,  25,  30,  33, 40, 42,
          44, 50,  52,  54,  56,  58,  59,  60,  62,  64,  66,  68,  70,  71, 77, 90,
          91, 100, 102, 104, 106, 108, 110, 111, 112, 120, 122, 124, 130, 131}},
        {key_kind::node, {1, 13, 40, 42, 58, 59, 64, 66, 70, 91, 100, 102, 104, 106, 108, 110}},
        // 33: of a namespace that its job has begun, see below
        {key_kind::attempt,
         {3, 5, 6, 15, 22, 23, 24, 25, 30, 44, 52, 54, 56, 71, 77, 90, 106, 108, 110, 130, 131}},
        {key_kind::space_server, {3, 5, 6, 22, 23, 24, 25, 30, 44, 71, 90, 130}},
        {key_kind::submit,
         {15, 50, 52, 54, 56, 60, 62, 68, 77, 106, 108, 110, 111, 112, 120, 122, 124, 131}},
        {key_kind::view, {15, 52, 54, 77, 106, 108, 110}},
    };
    return all;
}

task<void> say_all(world* w) {
    auto beginning = world::begin(w, "train");
    const auto attempt = co_await beginning;
    REQUIRE(attempt.name().kind == key_kind::attempt);
    constexpr std::uint64_t own = 77; // of a space server
    for (const auto& [kind, may] : expected()) {
        const auto key = kind == key_kind::attempt        ? attempt
                         : kind == key_kind::space_server ? w->key(kind, own)
                                                          : w->key(kind);
        auto all = samples_of(cluster::cluster_messages());
        std::stable_partition(all.begin(), all.end(), [](const sample& one) {
            return one.number != cluster::stop_job::number; // an attempt stops itself with it
        });
        for (auto& one : all) {
            if (kind == key_kind::cluster && one.number == cluster::ask_stop::number) continue;
            std::uint64_t incarnation = 1000 * static_cast<std::uint64_t>(kind) + one.number + 1;
            if (kind == key_kind::space_server && one.number == cluster::driver_hello::number) {
                cluster::driver_hello hello;
                hello.space = "prod";
                one.body = wire::encode(hello);
                incarnation = own;
            }
            auto saying = say(w, key, incarnation, one.number, std::move(one.body));
            const auto said = co_await saying;
            const bool is_refused = said && said->code() == errc::permission_denied;
            const auto row = *cluster::rights_of(one.number);
            INFO(net::to_string(kind)
                 << ", " << one.name << ": " << (said ? said->what() : "it was taken"));
            if (row.of_head && kind == key_kind::cluster) {
                CHECK(said->code() == errc::not_supported); // the key would do, the role does not
                continue;
            }
            CHECK(is_refused == !may.contains(one.number));
            const auto reach = cluster::reach_of(one.number, kind);
            const bool is_unowned =
                reach == cluster::reach::own_space && one.number == cluster::ask_stop_space::number;
            CHECK(is_refused == (reach == cluster::reach::nothing || is_unowned));
            if (!is_refused) continue;
            CHECK_THAT(said->text(), ContainsSubstring(std::string(row.what) + " "));
            CHECK_THAT(said->text(), ContainsSubstring("is refused to"));
            CHECK(!said->hint().empty());
        }
    }
    auto saying =
        say(w, w->c.secret(), 5, cluster::ask_stop::number, wire::encode(cluster::ask_stop{}));
    const auto stopped = co_await saying;
    CHECK_FALSE(stopped);
}

TEST_CASE("each message with each kind of key is taken or refused as the table says",
          "[cluster][rights]") {
    in_world([](world* w) { return say_all(w); });
}

task<void> reach_own_job(world* w) {
    auto beginning = world::begin(w, "mine");
    const auto key = co_await beginning;
    auto another = world::begin(w, "other");
    const auto others_key = co_await another;
    CHECK_FALSE(key == others_key);

    auto listing = world::ask<cluster::job_list>(w, key, cluster::ask_jobs{});
    const auto list = co_await listing;
    REQUIRE(list);
    REQUIRE(list->jobs.size() == 1);
    CHECK(list->jobs[0].id == "mine");
    auto looking = world::ask<cluster::cluster_status>(w, key, cluster::ask_status{});
    const auto status = co_await looking;
    REQUIRE(status);
    CHECK(status->nodes.size() == 1);
    REQUIRE(status->jobs.size() == 1);
    CHECK(status->jobs[0].job == "mine");

    cluster::follow_job follow;
    follow.id = "other";
    auto following = world::ask<cluster::job_lines>(w, key, follow);
    const auto lines = co_await following;
    REQUIRE_FALSE(lines);
    CHECK(lines.error().code() == errc::permission_denied);
    CHECK_THAT(lines.error().text(),
               ContainsSubstring("reading lines of a job (other) is refused"));
    CHECK_THAT(lines.error().text(), ContainsSubstring("the key of job mine"));
    CHECK_THAT(lines.error().hint(), ContainsSubstring("outside of the job"));
    cluster::stop_job stop;
    stop.id = "other";
    auto stopping = world::ask<cluster::stop_job_reply>(w, key, stop);
    const auto not_stopped = co_await stopping;
    CHECK_FALSE(not_stopped);
    follow.id = "mine";
    auto own = world::ask<cluster::job_lines>(w, key, follow);
    const auto read = co_await own;
    CHECK(read);

    // A driver of its job is that job's, whatever it says, and none that others have.
    cluster::driver_hello hello;
    hello.executable = "/app";
    hello.address = "sim:tool:9";
    hello.job = "other";
    auto as_other = say(w, key, 31, cluster::driver_hello::number, wire::encode(hello));
    const auto other_job = co_await as_other;
    REQUIRE(other_job);
    CHECK(other_job->code() == errc::permission_denied);
    hello.job.clear();
    auto as_taken =
        say(w, key, others_key.name().number, cluster::driver_hello::number, wire::encode(hello));
    const auto taken = co_await as_taken;
    REQUIRE(taken);
    CHECK(taken->code() == errc::permission_denied);
    hello.space = "prod";
    auto as_server = say(w, key, 33, cluster::driver_hello::number, wire::encode(hello));
    const auto server = co_await as_server;
    REQUIRE(server);
    CHECK(server->code() == errc::permission_denied);
}

TEST_CASE("a job reads and stops itself, and no other job", "[cluster][rights]") {
    in_world([](world* w) { return reach_own_job(w); });
}

task<void> outlive_attempt(world* w) {
    auto beginning = world::begin(w, "train");
    const auto key = co_await beginning;
    net::link_options once;
    once.resume = net::resume_mode::off;
    auto dialing = net::link::connect(w->jobs.tool(), test::sim_nodes::head_address(),
                                      cluster::detail::cluster_link(key, "peer", "tool", 1), once);
    const auto way = net::requests::over(co_await dialing);
    auto asking = way->call<cluster::job_list>(cluster::ask_jobs{});
    const auto in_time = co_await asking;
    CHECK(in_time.jobs.size() == 1);

    auto stopping = w->jobs.stop("train");
    (void)co_await stopping;
    auto ending = w->jobs.until("train", cluster::job_state::stopped);
    (void)co_await ending;

    auto again = as_result(way->call<cluster::job_list>(cluster::ask_jobs{}));
    const auto late = co_await again;
    REQUIRE_FALSE(late);
    CHECK(late.error().code() == errc::permission_denied);
    CHECK_THAT(late.error().text(), ContainsSubstring("attempt 1 of job train has ended"));
    auto closing = shield(way->close());
    co_await closing;
    auto anew = world::ask<cluster::job_list>(w, key, cluster::ask_jobs{});
    const auto refused = co_await anew;
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::permission_denied);
    CHECK_THAT(refused.error().text(), ContainsSubstring("this key opens nothing any more: attempt "
                                                         "1 of job train has ended"));
}

TEST_CASE("the key of an attempt that has ended opens nothing, over an open link neither",
          "[cluster][rights]") {
    in_world([](world* w) { return outlive_attempt(w); });
}

task<void> try_bad_keys(world* w) {
    auto beginning = world::begin(w, "train");
    const auto key = co_await beginning;
    const auto stranger = net::token::generate(w->c.loop().random());
    auto flipped = to_buffer(key.bytes());
    flipped[7] ^= std::byte{1};
    const std::vector<std::pair<net::token, const char*>> bad = {
        {stranger, "another token"},
        {stranger.derive(key.name()), "another token"},
        {net::token::of_bytes(key.name(), flipped), "another token"},
        // the number or kind of another key
        {net::token::of_bytes({key_kind::attempt, key.name().number + 1}, key.bytes()),
         "another token"},
        {net::token::of_bytes({key_kind::node, key.name().number}, key.bytes()), "another token"},
        {net::token::of_bytes({}, key.bytes()), "another token"},
        {w->key(key_kind::attempt, key.name().number + 1), "that this head does not know"},
        {w->key(static_cast<key_kind>(99)), "a key of kind 99 is not known"},
    };
    for (const auto& [one, why] : bad) {
        auto asking = world::ask<cluster::job_list>(w, one, cluster::ask_jobs{});
        const auto got = co_await asking;
        REQUIRE_FALSE(got);
        CHECK(got.error().code() == errc::permission_denied);
        CHECK_THAT(got.error().text(), ContainsSubstring(why));
        CHECK(std::string(got.error().what()).find(one.to_hex().substr(0, 16)) ==
              std::string::npos);
    }
    auto good = world::ask<cluster::job_list>(w, key, cluster::ask_jobs{});
    const auto let_in = co_await good;
    CHECK(let_in);
}

TEST_CASE("keys of other clusters, and ones with a bit that is wrong, open nothing",
          "[cluster][rights]") {
    in_world([](world* w) { return try_bad_keys(w); });
}

/// Calls, an actor in a namespace, and that namespace's end, all with the key of a job.
task<void> drive_job(world* w, net::token key) {
    cluster::leased_workers_options how;
    how.secret = key;
    const auto d = w->c.make_driver("driver", 0, std::move(how));
    const auto key_again = key;
    auto driving = test::as_driver(d.get(), [w, key_again]() -> task<void> { // NOLINT: run at once
        auto calling = remote<&twice>(21);
        const int answer = co_await calling;
        CHECK(answer == 42);
        auto making = actor<tally>.with({.name = "t", .space = "prod", .detached = true})(40);
        const auto there = co_await making;
        auto adding = there.call<&tally::add>(2);
        const int sum = co_await adding;
        CHECK(sum == 42);
        cluster::ask_stop_space stop;
        stop.space = "nobody";
        auto missing = world::ask<cluster::stop_space_reply>(w, key_again, stop);
        const auto not_begun = co_await missing;
        CHECK_FALSE(not_begun);
        stop.space = "prod";
        auto stopping = world::ask<cluster::stop_space_reply>(w, key_again, stop);
        const auto ended = co_await stopping;
        CHECK(ended);
    });
    co_await driving;
}
task<void> drive(world* w) {
    auto beginning = world::begin(w, "train");
    const auto key = co_await beginning;
    auto driving = drive_job(w, key);
    co_await driving;
    auto stopping = w->jobs.stop("train");
    (void)co_await stopping;
}

TEST_CASE("a job's key drives workers and namespaces of that job", "[cluster][rights]") {
    in_world([](world* w) { return drive(w); });
}

task<void> stay_behind(world* w) {
    auto beginning = world::begin(w, "train");
    cluster::leased_workers_options how;
    how.secret = co_await beginning;
    const auto d = w->c.make_driver("driver", 0, std::move(how));
    auto driving = test::as_driver(d.get(), [w]() -> task<void> { // NOLINT: run at once
        auto calling = remote<&twice>(21);
        const int answer = co_await calling;
        CHECK(answer == 42);
        CHECK(w->c.processes() > 1);
        auto stopping = w->jobs.stop("train");
        (void)co_await stopping;
        auto ending = w->jobs.until("train", cluster::job_state::stopped);
        (void)co_await ending;
        co_await sleep_for(30s); // it goes on as if it had not been of that job
        CHECK(w->c.processes() == 0);
        CHECK(w->c.head().status().jobs.empty());
    });
    co_await driving;
}

TEST_CASE("a program that stays behind its job loses its workers with the key",
          "[cluster][rights]") {
    in_world([](world* w) { return stay_behind(w); });
}

task<void> be_node_with_key(world* w) {
    // The only node that knows no token.
    auto leaving = w->c.kill_agent(w->c.at(0));
    co_await leaving;
    auto how = w->c.agent_defaults();
    how.secret = w->key(key_kind::node, 5);
    w->c.start_agent(w->c.at(0), std::move(how));
    auto beginning = world::begin(w, "train");
    const auto key = co_await beginning; // the one that the head can derive
    CHECK(key == w->key(key_kind::attempt, key.name().number));
    auto driving = drive_job(w, key);
    co_await driving;
    const auto d = w->c.make_driver("outside");
    auto calling = test::as_driver(d.get(), []() -> task<void> {
        auto r = remote<&twice>(4);
        const int answer = co_await r;
        CHECK(answer == 8);
    });
    co_await calling;
    auto stopping = w->jobs.stop("train");
    (void)co_await stopping;
}

TEST_CASE("a node with a node key starts what the head says, with keys that it could not derive",
          "[cluster][rights]") {
    in_world([](world* w) { return be_node_with_key(w); });
}

TEST_CASE("a sealed secret opens with the same key, number and purpose alone",
          "[cluster][rights]") {
    const auto by = net::token::generate(), secret = net::token::generate();
    const auto shut = cluster::detail::sealed(by, "a", 7, secret.bytes());
    const auto open = [&](const net::token& with, std::string_view what, std::uint64_t number) {
        const auto bytes = cluster::detail::sealed(with, what, number, shut);
        return net::token::of_bytes({}, bytes) == secret;
    };
    CHECK(open(by, "a", 7));
    CHECK_FALSE(open(by, "b", 7));
    CHECK_FALSE(open(by, "a", 8));
    CHECK_FALSE(open(secret, "a", 7));
    CHECK_FALSE(net::token::of_bytes({}, shut) == secret);
}

} // namespace rights_test

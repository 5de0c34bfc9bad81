// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/core/all.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <skein/sim/disk.hpp>
#include <tests/support/cluster_peer.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <map>
#include <string>

using namespace skein;
using namespace std::chrono_literals;

namespace {

struct kept_sum {
    int n = 0;
    int add(int k) { return n += k; }
    int get() const { return n; }
    int save() const { return n; }
    void load(int saved) { n = saved; }
};
int kept_double(int x) { return 2 * x; }
task<int> kept_later(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}
/// Calls its neighbour, and tasks.
struct kept_caller {
    task<int> add_there(std::string name, int k) {
        auto looking = get_actor<kept_sum>(name);
        const auto other = co_await looking;
        auto r = other.call<&kept_sum::add>(k);
        co_return co_await r;
    }
    task<int> twice(int x) {
        auto r = remote<&kept_double>(x);
        const int a = co_await r;
        auto waits = remote<&kept_later>.with({.cpus = 0})(x);
        const int b = co_await waits;
        co_return a + b;
    }
    task<int> wait(int ms) {
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return ms;
    }
};

task<actor_handle<kept_sum>> make_sum(int start, const char* name = "sum", int restarts = 0) {
    return actor<kept_sum>.with(
        {.restarts = restarts, .name = name, .space = "prod", .detached = true})(start);
}
task<actor_handle<kept_sum>> find_sum(const char* name = "sum") {
    return get_actor<kept_sum>(name, {.space = "prod"});
}
task<result<actor_handle<kept_sum>>> try_find(const char* name = "sum") {
    return as_result(find_sum(name));
}

/// Waits until nobody is left of the namespace.
task<void> until_empty(test::sim_nodes* c, duration most) {
    const auto last = deadline_after(c->loop().now(), most);
    while (c->processes() > 0 && c->loop().now() < last) co_await sleep_for(100ms);
    CHECK(c->processes() == 0);
    CHECK(c->head().status().jobs.empty());
}

/// Runs body() as the tasks of a driver of that name, and ends it.
template <class Body>
task<void> as_program(test::sim_nodes* c, std::string name, Body body) {
    const auto d = c->make_driver(name);
    auto driving = test::as_driver(d.get(), std::move(body));
    co_await driving;
}

template <class Body>
void with_nodes(std::uint64_t seed, int nodes, Body body) {
    test::in_world_of_nodes(seed, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        for (int i = 0; i < nodes; ++i) c.add_node(2);
        auto work = body(&c);
        co_await work;
    });
}

task<void> make_and_add() {
    auto making = make_sum(10);
    const auto sum = co_await making;
    auto r = sum.call<&kept_sum::add>(5);
    const int got = co_await r;
    CHECK(got == 15);
}
task<void> find_add_and_kill() {
    auto looking = find_sum();
    const auto sum = co_await looking;
    auto r = sum.call<&kept_sum::add>(1);
    const int got = co_await r;
    CHECK(got == 16);
    kill(sum);
    auto gone = try_find();
    const auto now = co_await gone;
    REQUIRE_FALSE(now);
    CHECK(now.error().code() == errc::not_found);
}

} // namespace

TEST_CASE("a detached actor outlives its program, is found by another, and its namespace ends a "
          "minute after it was killed",
          "[N1][N5][cluster][space server]") {
    with_nodes(1, 2, [](test::sim_nodes* c) -> task<void> {
        auto first = as_program(c, "first", &make_and_add);
        co_await first;
        co_await sleep_for(10s);
        CHECK(test::sim_nodes::space_servers("prod") == 1);
        CHECK(c->processes() == 2); // the space server and the actor: no program holds a worker
        const auto status = c->head().status();
        REQUIRE(status.jobs.size() == 1);
        CHECK(status.jobs.front().space == "prod");
        CHECK(status.jobs.front().workers == 1);
        auto second = as_program(c, "second", &find_add_and_kill);
        co_await second;
        const auto began = c->loop().now();
        auto ended = until_empty(c, 70s);
        co_await ended;
        CHECK(c->loop().now() - began > 55s);
    });
}

namespace {

task<void> no_workers_of_its_own(test::sim_nodes* c) {
    auto making = make_sum(1);
    const auto sum = co_await making;
    co_await sleep_for(1s);
    CHECK(c->processes() == 2);
    auto r = remote<&kept_double>(4);
    const int got = co_await r;
    CHECK(got == 8);
    CHECK(c->processes() > 2);
    // Refs of either are arguments of calls of the other, and both can be waited for together.
    auto one = sum.call<&kept_sum::add>(3);
    auto two = remote<&kept_double>(one);
    auto three = sum.call<&kept_sum::add>(two);
    auto both = all(two, three);
    const auto [a, b] = co_await std::move(both);
    CHECK(a == 8);
    CHECK(b == 12);
    kill(sum);
}

} // namespace

TEST_CASE("a program that calls detached actors alone has no workers, and refs of both kinds of "
          "calls go together",
          "[N2][cluster][space server]") {
    with_nodes(2, 2, [](test::sim_nodes* c) -> task<void> {
        auto work = as_program(c, "only", [c] { return no_workers_of_its_own(c); });
        co_await work;
        auto ended = until_empty(c, 70s);
        co_await ended;
    });
}

namespace {

task<void> ask_at_once(int* made, int* found) {
    auto making = as_result(make_sum(7));
    const auto got = co_await making;
    if (got) {
        ++*made;
        co_await sleep_for(20s);
        kill(*got);
    } else {
        CHECK(got.error().code() == errc::already_exists);
        auto looking = find_sum();
        const auto sum = co_await looking;
        auto r = sum.call<&kept_sum::get>();
        const int n = co_await r;
        CHECK(n == 7);
        ++*found;
    }
}

} // namespace

TEST_CASE("programs that ask for a namespace at the same time get one space server",
          "[N3][cluster][space server]") {
    with_nodes(3, 2, [](test::sim_nodes* c) -> task<void> {
        int made = 0, found = 0;
        scope all_of_them;
        for (int i = 0; i < 4; ++i)
            all_of_them.spawn(as_program(c, "p" + std::to_string(i),
                                         [&made, &found] { return ask_at_once(&made, &found); }));
        co_await sleep_for(10s);
        CHECK(test::sim_nodes::space_servers("prod") == 1);
        auto ended = all_of_them.join();
        co_await ended;
        CHECK(made == 1);
        CHECK(found == 3);
    });
}

namespace {

task<void> refusals(test::sim_nodes* c) {
    const auto said = [](auto what) -> task<std::string> {
        auto asked = as_result(std::move(what));
        const auto got = co_await asked;
        co_return got ? std::string() : std::string(got.error().what());
    };
    auto nameless = said(actor<kept_sum>.with({.space = "prod", .detached = true})(1));
    const auto no_name = co_await nameless;
    CHECK(no_name.find("needs a .name and a .space") != no_name.npos);
    auto placeless = said(actor<kept_sum>.with({.name = "x", .detached = true})(1));
    const auto no_space = co_await placeless;
    CHECK(no_space.find("needs a .name and a .space") != no_space.npos);
    auto attached = said(actor<kept_sum>.with({.name = "x", .space = "prod"})(1));
    const auto not_detached = co_await attached;
    CHECK(not_detached.find(".detached = true") != not_detached.npos);

    auto making = make_sum(1);
    const auto sum = co_await making;
    auto wrong = said(get_actor<kept_caller>("sum", {.space = "prod"}));
    const auto type = co_await wrong;
    CHECK(type.find("is a") != type.npos);

    auto nameless_space = said(get_actor<kept_sum>("sum", {.space = std::string(256, 'x')}));
    const auto too_long = co_await nameless_space;
    CHECK(too_long.find("a namespace has 1 to 255 bytes") != too_long.npos);
    kill(sum);
    (void)c;
}

} // namespace

TEST_CASE("what a detached actor cannot be is refused with what to do",
          "[N4][cluster][space server]") {
    with_nodes(4, 2, [](test::sim_nodes* c) -> task<void> {
        auto work = as_program(c, "asks", [c] { return refusals(c); });
        co_await work;
    });
}

namespace {

task<void> neighbours() {
    auto making = make_sum(1);
    const auto sum = co_await making;
    auto second = actor<kept_caller>.with({.name = "caller", .space = "prod", .detached = true})();
    const auto caller = co_await second;
    auto added = caller.call<&kept_caller::add_there>("sum", 4);
    const int got = co_await added;
    CHECK(got == 5);
    auto tasks = caller.call<&kept_caller::twice>(10);
    const int twice = co_await tasks;
    CHECK(twice == 30);
}
task<void> kill_neighbours() {
    auto one = find_sum();
    const auto sum = co_await one;
    auto two = get_actor<kept_caller>("caller", {.space = "prod"});
    const auto caller = co_await two;
    kill(sum);
    kill(caller);
}

} // namespace

TEST_CASE("detached actors find each other by name alone, and make tasks",
          "[N2][cluster][space server]") {
    with_nodes(5, 2, [](test::sim_nodes* c) -> task<void> {
        auto first = as_program(c, "first", &neighbours);
        co_await first;
        auto second = as_program(c, "second", &kill_neighbours);
        co_await second;
        auto ended = until_empty(c, 70s);
        co_await ended;
    });
}

namespace {

std::int64_t pid_of(test::sim_nodes* c, std::string_view name, std::size_t* node) {
    for (std::size_t i = 0; i < c->nodes(); ++i)
        for (const auto& one : c->at(i).children->running())
            if (one.name.starts_with(name)) {
                *node = i;
                return one.pid;
            }
    return 0;
}

task<void> lose_the_worker(test::sim_nodes* c) {
    auto making = make_sum(1, "sum", -1);
    const auto sum = co_await making;
    auto r = sum.call<&kept_sum::add>(1);
    (void)co_await r;
    std::size_t at = 0;
    const auto pid = pid_of(c, "worker-", &at);
    REQUIRE(pid != 0);
    c->at(at).children->kill(pid);
    co_await sleep_for(1s);
    auto again = sum.call<&kept_sum::add>(1);
    const int got = co_await again;
    CHECK(got == 3);
}
task<void> find_restarted(test::sim_nodes* c) {
    auto looking = find_sum();
    const auto sum = co_await looking;
    std::size_t at = 0;
    c->at(at).children->kill(pid_of(c, "worker-", &at));
    co_await sleep_for(1s);
    auto r = sum.call<&kept_sum::get>();
    const int got = co_await r;
    CHECK(got == 3);
    kill(sum);
}

} // namespace

TEST_CASE("a detached actor with restarts is made again when its worker dies, whoever holds it",
          "[N6][cluster][space server]") {
    with_nodes(6, 1, [](test::sim_nodes* c) -> task<void> {
        auto first = as_program(c, "first", [c] { return lose_the_worker(c); });
        co_await first;
        std::size_t at = 0;
        c->at(0).children->kill(pid_of(c, "worker-", &at)); // nobody holds it
        co_await sleep_for(2s);
        auto second = as_program(c, "second", [c] { return find_restarted(c); });
        co_await second;
    });
}

namespace {

task<void> lose_the_space_server(test::sim_nodes* c) {
    auto making = actor<kept_caller>.with({.name = "caller", .space = "prod", .detached = true})();
    const auto caller = co_await making;
    auto r = caller.call<&kept_caller::wait>(60'000);
    co_await sleep_for(1s);
    std::size_t at = 0;
    const auto pid = pid_of(c, "space server", &at);
    REQUIRE(pid != 0);
    const auto began = c->loop().now();
    c->at(at).children->kill(pid);
    auto asked = as_result(as_task(r));
    const auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code() == errc::worker_lost);
    const std::string text = outcome.error().what();
    INFO(text);
    CHECK(text.find("the space server of namespace \"prod\" was lost") != text.npos);
    CHECK(text.find("SIGKILL") != text.npos);
    CHECK(c->loop().now() - began < 5s);
    auto later = as_result(as_task(caller.call<&kept_caller::wait>(1)));
    const auto refused = co_await later;
    REQUIRE_FALSE(refused);
    const std::string why = refused.error().what();
    INFO(why);
    CHECK(refused.error().code() == errc::worker_lost);
    CHECK(why.find("did not run") != why.npos);
    auto gone = try_find("caller");
    const auto now = co_await gone;
    REQUIRE_FALSE(now);
    CHECK(now.error().code() == errc::not_found);
    auto again = make_sum(3);
    const auto sum = co_await again;
    auto value = sum.call<&kept_sum::get>();
    const int got = co_await value;
    CHECK(got == 3);
    CHECK(test::sim_nodes::space_servers("prod") == 1);
    kill(sum);
}

} // namespace

TEST_CASE("when a space server dies its actors are lost, calls say so, and the next request starts "
          "another",
          "[N7][cluster][space server]") {
    with_nodes(7, 2, [](test::sim_nodes* c) -> task<void> {
        auto work = as_program(c, "asks", [c] { return lose_the_space_server(c); });
        co_await work;
        auto ended = until_empty(c, 70s);
        co_await ended;
        auto asking = c->past_jobs();
        const auto past = co_await asking;
        REQUIRE(past.size() == 3);
        CHECK(std::count_if(past.begin(), past.end(),
                            [](const auto& j) { return j.space == "prod"; }) == 2);
        CHECK(past.front().space == "prod");
    });
}

namespace {

task<void> lose_the_head(test::sim_nodes* c) {
    auto making = make_sum(1);
    const auto sum = co_await making;
    auto killed = c->kill_head();
    co_await killed;
    co_await sleep_for(5s);
    auto meanwhile = sum.call<&kept_sum::add>(1);
    const int got = co_await meanwhile;
    CHECK(got == 2);
    c->start_head();
}
task<void> find_after_head() {
    auto looking = find_sum();
    const auto sum = co_await looking;
    auto r = sum.call<&kept_sum::get>();
    const int got = co_await r;
    CHECK(got == 2);
    kill(sum);
}

} // namespace

TEST_CASE("a head that was started again finds the space servers that live",
          "[N8][cluster][space server]") {
    with_nodes(8, 2, [](test::sim_nodes* c) -> task<void> {
        auto first = as_program(c, "first", [c] { return lose_the_head(c); });
        co_await first;
        auto second = as_program(c, "second", &find_after_head);
        co_await second;
        CHECK(test::sim_nodes::space_servers("prod") == 1);
        auto ended = until_empty(c, 90s);
        co_await ended;
    });
}

namespace {

task<void> make_only() {
    auto making = make_sum(1);
    (void)co_await making;
}
task<void> find_when_sure(test::sim_nodes* c, time_point lost) {
    auto gone = try_find();
    const auto now = co_await gone;
    REQUIRE_FALSE(now);
    CHECK(now.error().code() == errc::not_found);
    CHECK(c->loop().now() - lost > 32s); // its agent had to give up first
    CHECK(test::sim_nodes::space_servers("prod") == 1);
}

task<void> find_and_kill() {
    auto looking = find_sum();
    const auto sum = co_await looking;
    auto r = sum.call<&kept_sum::get>();
    const int got = co_await r;
    CHECK(got == 1);
    kill(sum);
}

} // namespace

TEST_CASE("a head with a log knows that space servers may live that do not come at once",
          "[N3][N8][cluster][space server]") {
    sim::disk disk;
    test::in_world_of_nodes(12, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.head_disk = &disk;
        c.start_head();
        c.add_node(2);
        auto first = as_program(&c, "first", &make_only);
        co_await first;
        auto killed = c.kill_head();
        co_await killed;
        c.network().partition("n1", "head");
        c.start_head();
        c.add_node(2); // whom no head has welcomed before
        scope asking;
        asking.spawn(as_program(&c, "second", &find_and_kill));
        co_await sleep_for(10s);
        CHECK(test::sim_nodes::space_servers("prod") == 1);
        c.network().heal_all();
        auto found = asking.join();
        co_await found;
        auto ended = until_empty(&c, 90s);
        co_await ended;
    });
}

TEST_CASE("no second space server begins while one that is cut off may live",
          "[N3][cluster][space server]") {
    with_nodes(9, 2, [](test::sim_nodes* c) -> task<void> {
        auto first = as_program(c, "first", &make_only);
        co_await first;
        std::size_t at = 0;
        REQUIRE(pid_of(c, "space server", &at) != 0);
        for (const auto* other : {"head", "n1", "n2", "second"})
            if (c->at(at).host != other) c->network().partition(c->at(at).host, other);
        const auto lost = c->loop().now();
        auto second = as_program(c, "second", [c, lost] { return find_when_sure(c, lost); });
        co_await second;
        c->network().heal_all();
        auto ended = until_empty(c, 120s);
        co_await ended;
    });
}

namespace {

task<void> look_in_vain(std::string* told) {
    auto asked = try_find();
    const auto got = co_await asked;
    if (!got) *told = got.error().what();
}
/// What a program is told that looks for an actor.
task<std::string> why_none_is_found(test::sim_nodes* c) {
    std::string text;
    auto work = as_program(c, "asks", [&text] { return look_in_vain(&text); });
    co_await work;
    co_return text;
}

} // namespace

TEST_CASE("the error of a space server that does not start has the reason",
          "[N9][cluster][space server]") {
    with_nodes(10, 1, [](test::sim_nodes* c) -> task<void> {
        c->at(0).children->faults().not_found = 1;
        auto asking = why_none_is_found(c);
        const auto text = co_await asking;
        INFO(text);
        CHECK(text.find("the space server of namespace \"prod\" did not start") != text.npos);
    });
}

TEST_CASE("the error of a space server that finds no node says for what it waits",
          "[N9][cluster][space server]") {
    test::in_world_of_nodes(13, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.head_defaults.times.start_timeout = 5s;
        c.start_head();
        auto asking = why_none_is_found(&c);
        const auto text = co_await asking;
        INFO(text);
        CHECK(text.find(
                  "the space server of namespace \"prod\" did not start: it waits for a node: ") !=
              text.npos);
    });
}

TEST_CASE("a space server that was given up does not get its namespace again",
          "[N3][N9][cluster][space server]") {
    test::in_world_of_nodes(14, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.head_defaults.driver_grace = 1s;
        c.start_head();
        test::cluster_peer node; // ends no worker
        auto dialing = node.dial(&c, "raw", 7);
        co_await dialing;
        auto joining =
            node.way->call<cluster::node_welcome>(test::peer_node({test::peer_lease(5, 3)}));
        (void)co_await joining;
        co_await sleep_for(2s);
        CHECK(node.stops.size() == 1);
        auto hello = test::peer_driver("late");
        hello.space = "prod";
        auto late = test::say_hello(&c, 5, hello);
        const auto refused = co_await late;
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::aborted);
        auto gone = node.close();
        co_await gone;
        c.add_node(2);
        auto first = as_program(&c, "first", &make_only);
        co_await first;
        CHECK(test::sim_nodes::space_servers("prod") == 1);
    });
}

namespace {

task<void> ask_as_other_build(test::sim_nodes* c, std::string* out) {
    auto dialing = net::link::connect(c->network().host("other"), c->head_address(),
                                      cluster::detail::cluster_link(c->secret(), "x", "other", 1));
    auto l = co_await dialing;
    auto way = net::requests::over(l);
    cluster::driver_hello h;
    h.name = "other-app";
    h.executable = "/other";
    h.address = "sim:other:1";
    h.build = 1;
    auto joined = way->call<cluster::driver_welcome>(h);
    (void)co_await joined;
    auto asked = as_result(way->call<cluster::space_entered>(cluster::enter_space{"prod"}));
    const auto got = co_await asked;
    if (!got) *out = got.error().what();
    auto closing = way->close();
    co_await closing;
}

} // namespace

TEST_CASE("another build is told which program keeps a namespace", "[N9][cluster][space server]") {
    with_nodes(11, 1, [](test::sim_nodes* c) -> task<void> {
        auto first = as_program(c, "first", &make_only);
        co_await first;
        std::string text;
        auto other = ask_as_other_build(c, &text);
        co_await other;
        INFO(text);
        CHECK(text.find("kept by another program or build") != text.npos);
        CHECK(text.find("/app") != text.npos);
    });
}

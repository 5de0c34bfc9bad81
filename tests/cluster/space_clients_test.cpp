// SPDX-License-Identifier: Apache-2.0
// Workers of a program as space clients of namespaces, handles that travel, and the end of a
// namespace on request.
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/tools.hpp>
#include <skein/core/all.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;

namespace guests_test {

struct store {
    int n = 0;
    std::vector<int> seen{};
    int add(int k) {
        seen.push_back(k);
        return n += k;
    }
    std::vector<int> all() const { return seen; }
    int waiting = 0;
    task<int> slow(int ms) {
        struct one {
            explicit one(int& of) : n(of) { ++n; }
            one(const one&) = delete;
            ~one() { --n; }
            int& n;
        } const counted(waiting);
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return ms;
    }
    int wait_now() const { return waiting; }
    int save() const { return n; }
    void load(int saved) { n = saved; }
};
using store_handle = actor_handle<store>;

/// In the namespace; its actors of its own are not detached.
struct maker {
    std::vector<store_handle> made{};
    task<store_handle> make() {
        auto making = actor<store>(1);
        made.push_back(co_await making);
        co_return made.back();
    }
    task<int> add_in(std::string space, std::string name, int k) {
        auto looking = get_actor<store>(name, {.space = space});
        const auto there = co_await looking;
        auto r = there.call<&store::add>(k);
        co_return co_await r;
    }
    task<int> add_to(store_handle there, int k) {
        auto r = there.call<&store::add>(k);
        co_return co_await r;
    }
};

task<store_handle> open_store(int start, std::string name = "s", int restarts = 0,
                              std::string space = "prod") {
    auto making = actor<store>.with({.restarts = restarts,
                                     .name = name,
                                     .get_if_exists = true,
                                     .space = space,
                                     .detached = true})(start);
    co_return co_await making;
}
task<store_handle> find_store(std::string name = "s") {
    return get_actor<store>(name, {.space = "prod"});
}

// Tasks of a program's workers.
task<int> add_by_name(std::string name, int k) {
    auto looking = get_actor<store>(name, {.space = "prod"});
    const auto found = co_await looking;
    auto r = found.call<&store::add>(k);
    co_return co_await r;
}
task<store_handle> make_there(int start, std::string name) {
    auto making = open_store(start, name);
    co_return co_await making;
}
task<int> add_many(std::vector<store_handle> to, int k) {
    int sum = 0;
    for (const auto& one : to) {
        auto r = one.call<&store::add>(k);
        sum += co_await r;
    }
    co_return sum;
}
task<int> pass_on(store_handle to, int k) {
    auto r = remote<&add_many>(std::vector{to}, k);
    co_return co_await r;
}
task<bool> is_one_line(store_handle to) {
    std::vector<ref<int>> all;
    for (int i = 1; i <= 20; ++i) {
        auto looking = find_store();
        const auto found = co_await looking;
        if (!(found == to)) co_return false;
        all.push_back((i % 2 == 0 ? found : to).call<&store::add>(i));
    }
    for (auto& r : all) (void)co_await r;
    auto seen = to.call<&store::all>();
    const auto order = co_await seen;
    for (int i = 1; i <= 20; ++i)
        if (order.at(order.size() - 21 + static_cast<std::size_t>(i)) != i) co_return false;
    co_return true;
}
task<int> wait_there(store_handle to, int ms) {
    auto r = to.call<&store::slow>(ms);
    co_return co_await r;
}
task<std::string> call_twice(store_handle to, int ms) {
    auto one = as_result(as_task(to.call<&store::slow>(ms)));
    const auto first = co_await one;
    auto two = as_result(as_task(to.call<&store::add>(1)));
    const auto second = co_await two;
    if (first || second) co_return std::string("a value");
    co_return std::string(first.error().what()) + "\n" + std::string(second.error().what());
}
task<void> kill_it(store_handle one) {
    kill(one);
    co_return;
}
int plain_twice(int x) { return 2 * x; }

/// Of the program: keeps a handle in its state.
struct keeps {
    std::vector<store_handle> kept{};
    void take(store_handle one) { kept.push_back(std::move(one)); }
    store_handle give() const { return kept.front(); }
    std::int64_t pid() const { return runtime_context().pid; }
    std::string host() const { return runtime_context().host; }
    task<int> add(int k) {
        auto r = kept.front().call<&store::add>(k);
        co_return co_await r;
    }
    std::vector<store_handle> save() const { return kept; }
    void load(std::vector<store_handle> saved) { kept = std::move(saved); }
};

template <class Work>
task<std::string> said(Work what) {
    auto asked = as_result(std::move(what));
    const auto got = co_await asked;
    co_return got ? std::string("a value") : std::string(got.error().what());
}
bool has(const std::string& text, std::string_view part) {
    UNSCOPED_INFO(text);
    return text.find(part) != text.npos;
}

using driver = test::sim_nodes::driver;
template <class Body>
void with_program(std::uint64_t seed, int nodes, Body body, int cpus = 2, int workers = 0) {
    test::in_world_of_nodes(seed, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        for (int i = 0; i < nodes; ++i) c.add_node(cpus);
        const auto d = c.make_driver("app", workers);
        auto driving = test::as_driver(d.get(), [&] { return body(&c, d.get()); });
        co_await driving;
        const auto last =
            deadline_after(c.loop().now(), 150s); // a killed space client is missed for 30 s
        while (c.processes() > 0 && c.loop().now() < last) co_await sleep_for(100ms);
        CHECK(c.processes() == 0); // also the space server, for nobody is its space client
    });
}

std::int64_t pid_of_space_server(test::sim_nodes* c, std::size_t* node) {
    for (std::size_t i = 0; i < c->nodes(); ++i)
        for (const auto& one : c->at(i).children->running())
            if (one.name.starts_with("space server")) {
                *node = i;
                return one.pid;
            }
    return 0;
}

/// Bytes that look like a handle, or not.
struct forged {
    int how = 0;
    store_handle got{};
};

} // namespace guests_test

template <>
struct skein::wire::codec<guests_test::forged> {
    static constexpr const char* schema = "forged handle";
    static void encode(writer& to, const guests_test::forged& f) {
        to.fixed(std::uint64_t{77}); // the actor
        to.fixed(std::uint64_t{1});
        to.fixed(rt::detail::detached_handle | rt::detail::foreign_handle);
        if (f.how == 0) return;
        to.fixed(std::uint64_t{f.how == 1 ? 0U : 4711U}); // the space server
        to.fixed(static_cast<std::uint8_t>(f.how == 2 ? 0 : f.how == 3 ? 200 : 4));
        if (f.how != 2) to.raw(as_bytes(std::string_view("prod")));
    }
    static result<void> decode(reader& from, guests_test::forged& into) {
        return codec<guests_test::store_handle>::decode(from, into.got);
    }
};

namespace guests_test {

task<int> use_forged(forged f) {
    auto r = f.got.call<&store::add>(1);
    co_return co_await r;
}
task<void> forge(test::sim_nodes*, driver*) {
    for (const int how : {0, 1, 2, 3}) {
        auto refused = said(as_task(remote<&use_forged>(forged{how})));
        const std::string why = co_await refused;
        CHECK(has(why, "arguments of guests_test::use_forged"));
        CHECK(has(why, "decode failed"));
    }
    auto unknown = said(as_task(remote<&use_forged>(forged{4})));
    const std::string lost = co_await unknown;
    CHECK(
        has(lost,
            "the space server of namespace \"prod\" was lost: it is not in the cluster any more"));
    CHECK(test::sim_nodes::space_servers("prod") == 0); // a handle starts none
}

TEST_CASE("a handle that cannot be read is refused, and one of a space server that nobody knows "
          "starts none",
          "[N11][cluster][space clients]") {
    with_program(13, 1, &forge);
}

// ------------------------------------------------------------------------------------------------

task<void> workers_ask(test::sim_nodes* c, driver*) {
    auto making = as_task(remote<&make_there>(10, "s"));
    const auto made = co_await making; // by a worker, and now here
    auto one = remote<&add_by_name>("s", 1);
    auto two = remote<&add_by_name>("s", 2);
    auto both = all(one, two);
    const auto [a, b] = co_await std::move(both);
    CHECK(std::max(a, b) == 13);
    auto last = made.call<&store::add>(0);
    const int sum = co_await last;
    CHECK(sum == 13);
    CHECK(test::sim_nodes::space_servers("prod") == 1);
    auto nobody = said(as_task(remote<&add_by_name>("other", 1)));
    const std::string none = co_await nobody;
    CHECK(has(none, "there is no actor named \"other\""));
    kill(made);
    (void)c;
}

TEST_CASE("a worker makes, finds and calls detached actors", "[N10][cluster][space clients]") {
    with_program(1, 2, &workers_ask);
}

task<void> handles_travel(test::sim_nodes* c, driver*) {
    auto first = open_store(0, "s");
    const auto s = co_await first;
    auto second = open_store(100, "t");
    const auto t = co_await second;
    auto many = remote<&add_many>(std::vector{s, t, s}, 1); // driver to worker
    const int sum = co_await many;
    CHECK(sum == 1 + 101 + 2);
    auto further = remote<&pass_on>(t, 9); // worker to worker
    const int passed = co_await further;
    CHECK(passed == 110);
    auto line = remote<&is_one_line>(s);
    const bool same = co_await line;
    CHECK(same);
    // In the state of an actor that is made again, and back from it.
    auto making = actor<keeps>.with({.restarts = -1})();
    const auto k = co_await making;
    auto taken = k.call<&keeps::take>(t);
    co_await taken;
    auto added = k.call<&keeps::add>(5);
    const int got = co_await added;
    CHECK(got == 115);
    auto given = k.call<&keeps::give>();
    const auto back = co_await given;
    CHECK(back == t); // the same line, so that calls through both keep their order
    auto r = back.call<&store::add>(1);
    const int last = co_await r;
    CHECK(last == 116);
    // Refs of handles, and refs as arguments.
    auto made = remote<&make_there>(0, "u");
    auto through = remote<&pass_on>(made, 3);
    const int through_ref = co_await through;
    CHECK(through_ref == 3);
    const auto u = co_await made;
    for (const auto& one : {s, t, u}) kill(one);
    (void)c;
}

TEST_CASE("handles of detached actors travel in arguments, results and states",
          "[N11][cluster][space clients]") {
    with_program(2, 2, &handles_travel);
}

task<void> lose_the_worker_of(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    auto making = actor<keeps>.with({.restarts = -1})();
    const auto k = co_await making;
    auto taken = k.call<&keeps::take>(s);
    co_await taken;
    auto before = k.call<&keeps::add>(1);
    (void)co_await before;
    auto where = k.call<&keeps::pid>();
    const auto pid = co_await where;
    auto at = k.call<&keeps::host>();
    const std::string host = co_await at;
    for (std::size_t i = 0; i < c->nodes(); ++i)
        if (c->at(i).host == host) c->at(i).children->kill(pid);
    co_await sleep_for(2s);
    auto r = k.call<&keeps::add>(1);
    auto asked = as_result(as_task(r));
    const auto got = co_await asked;
    INFO((got ? std::string() : std::string(got.error().what())));
    REQUIRE(got);
    CHECK(*got == 3);
    kill(s);
}

TEST_CASE("an actor that is made again has the handles of its state",
          "[N11][cluster][space clients]") {
    with_program(3, 2, &lose_the_worker_of);
}

task<void> what_is_refused(test::sim_nodes*, driver*) {
    auto making = actor<maker>.with({.name = "m", .space = "prod", .detached = true})();
    const auto m = co_await making;
    auto asks = m.call<&maker::make>();
    const auto plain = co_await asks; // here it is known: this program is a space client
    auto adds = plain.call<&store::add>(1);
    const int got = co_await adds;
    CHECK(got == 2);
    auto passed = said(as_task(remote<&pass_on>(plain, 1)));
    const std::string travels = co_await passed;
    CHECK(has(travels, "not supported: a handle to actor"));
    CHECK(has(travels, "of namespace \"prod\", which is not detached"));
    auto mine = actor<store>(1);
    const auto own = co_await mine;
    auto lent = said(as_task(m.call<&maker::add_to>(own, 1)));
    const std::string leaves = co_await lent;
    CHECK(has(leaves, "travels to another program or namespace"));
    kill(m);
}

TEST_CASE("handles that would not be counted are refused with what to do",
          "[N4][N11][cluster][space clients]") {
    with_program(4, 2, &what_is_refused);
}

task<void> space_server_dies(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    auto calls = remote<&call_twice>(s, 60'000);
    co_await sleep_for(2s);
    std::size_t at = 0;
    const auto pid = pid_of_space_server(c, &at);
    REQUIRE(pid != 0);
    const auto began = c->loop().now();
    c->at(at).children->kill(pid);
    const std::string both = co_await calls;
    CHECK(has(both, "the space server of namespace \"prod\" was lost"));
    CHECK(has(both, "SIGKILL"));
    CHECK(has(both, "had started"));
    CHECK(has(both, "did not run"));
    CHECK(c->loop().now() - began < 5s);
    // A handle of the past is of no use anywhere, and the name is free.
    auto stale = said(as_task(remote<&add_many>(std::vector{s}, 1)));
    const std::string past = co_await stale;
    CHECK(has(past, "the space server of namespace \"prod\" was lost"));
    auto again = as_task(remote<&make_there>(5, "s"));
    const auto next = co_await again;
    auto more = remote<&add_by_name>("s", 1);
    const int got = co_await more;
    CHECK(got == 6);
    auto old = said(as_task(remote<&add_many>(std::vector{s}, 1)));
    const std::string gone = co_await old;
    CHECK(has(gone, "was lost"));
    CHECK(test::sim_nodes::space_servers("prod") == 1);
    kill(next);
}

TEST_CASE("when a space server dies the calls of workers say so, and their next request finds "
          "another one",
          "[N12][cluster][space clients]") {
    with_program(5, 2, &space_server_dies);
}

task<void> tree(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    auto r = remote<&wait_there>(s, 600'000);
    co_await sleep_for(1s);
    const auto began = c->loop().now();
    r.cancel();
    auto cancelled = said(as_task(r));
    const std::string why = co_await cancelled;
    CHECK(has(why, "cancel"));
    auto limited = remote<&wait_there>.with({.deadline = 2s})(s, 600'000);
    auto late = said(as_task(limited));
    const std::string over = co_await late;
    CHECK(has(over, "gave no answer within 2 s"));
    CHECK(c->loop().now() - began < 5s);
    co_await sleep_for(1s);
    auto after = s.call<&store::wait_now>(); // nothing of both goes on there
    const int left = co_await after;
    CHECK(left == 0);
    auto third = remote<&wait_there>(s, 600'000);
    co_await sleep_for(1s);
    auto during = s.call<&store::wait_now>();
    const int now = co_await during;
    CHECK(now == 1);
    third.cancel();
    auto gone = said(as_task(third));
    (void)co_await gone;
    kill(s);
}

TEST_CASE("calls of namespaces are part of the call tree: they are cancelled with the task that "
          "made them, and end with its deadline",
          "[N10][C7][C11][cluster][space clients]") {
    with_program(6, 1, &tree);
}

task<void> cores(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    std::vector<ref<int>> waiting;
    for (int i = 0; i < 4; ++i) waiting.push_back(remote<&wait_there>(s, 5'000));
    co_await sleep_for(1s);
    const auto began = c->loop().now();
    auto r = remote<&plain_twice>(4); // the only core is others' while they wait
    const int got = co_await r;
    CHECK(got == 8);
    CHECK(c->loop().now() - began < 1s);
    for (auto& one : waiting) (void)co_await one;
    CHECK(c->loop().now() - began < 10s); // all at once
    kill(s);
}

TEST_CASE("a task that waits for an actor of a namespace holds no core",
          "[N10][W7][cluster][space clients]") {
    with_program(7, 1, &cores, 1);
}

task<void> head_dies(test::sim_nodes* c, driver*) {
    auto opening = open_store(1, "s", -1);
    const auto s = co_await opening;
    auto first = remote<&add_many>(std::vector{s}, 1);
    (void)co_await first;
    auto killed = c->kill_head();
    co_await killed;
    co_await sleep_for(5s);
    auto meanwhile = remote<&add_many>(std::vector{s}, 1);
    const int got = co_await meanwhile;
    CHECK(got == 3);
    c->start_head();
    co_await sleep_for(5s);
    auto later = remote<&add_by_name>("s", 1);
    const int after = co_await later;
    CHECK(after == 4);
    // The head that was started again knows whom to tell of the space server's end.
    std::size_t at = 0;
    const auto pid = pid_of_space_server(c, &at);
    auto waits = remote<&call_twice>(s, 60'000);
    co_await sleep_for(1s);
    c->at(at).children->kill(pid);
    const std::string both = co_await waits;
    CHECK(has(both, "SIGKILL"));
}

TEST_CASE(
    "workers go on with a namespace while the head is away, and hear of its end from the next",
    "[N12][cluster][space clients]") {
    with_program(8, 2, &head_dies);
}

task<void> kill_first(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    auto r = remote<&kill_it>(s); // before this worker has met the space server
    co_await r;
    co_await sleep_for(1s);
    auto looking = said(find_store());
    const std::string gone = co_await looking;
    CHECK(has(gone, "there is no actor named \"s\""));
    (void)c;
}

TEST_CASE("kill() of a handle that has just come reaches its actor",
          "[N11][cluster][space clients]") {
    with_program(9, 1, &kill_first);
}

task<void> between(test::sim_nodes* c, driver*) {
    auto opening = open_store(1, "s", 0, "other");
    const auto s = co_await opening;
    auto making = actor<maker>.with({.name = "m", .space = "prod", .detached = true})();
    const auto m = co_await making;
    auto by_name = m.call<&maker::add_in>("other", "s", 4);
    const int got = co_await by_name;
    CHECK(got == 5);
    auto by_handle = m.call<&maker::add_to>(s, 5);
    const int more = co_await by_handle;
    CHECK(more == 10);
    auto own = open_store(50, "in");
    const auto in = co_await own;
    auto at_home = m.call<&maker::add_in>("prod", "in", 1); // its own namespace, by its name
    const int there = co_await at_home;
    CHECK(there == 51);
    CHECK(test::sim_nodes::space_servers("prod") == 1);
    CHECK(test::sim_nodes::space_servers("other") == 1);
    kill(s);
    kill(in);
    kill(m);
    (void)c;
}

TEST_CASE("actors of a namespace call those of others, and their own by its name",
          "[N10][N11][cluster][space clients]") {
    with_program(10, 2, &between);
}

task<void> leaves_early(test::sim_nodes* c, std::map<std::string, int>* out) {
    const auto d = c->make_driver("dies");
    auto work = d->self.run_here([](std::map<std::string, int>* into) -> task<void> {
        auto looking = find_store();
        const auto s = co_await looking;
        auto r = remote<&wait_there>(s, 600'000);
        co_await sleep_for(2s);
        (*into)["begun"] = 1;
        co_await sleep_for(600s);
        (void)r;
    }(out));
    auto cut = as_result(with_timeout(std::move(work), 5s));
    (void)co_await cut;
    c->network().crash("dies", true);
    auto ended = d->end();
    co_await ended;
}

task<void> driver_dies(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    std::map<std::string, int> seen;
    auto other = leaves_early(c, &seen);
    co_await other;
    CHECK(seen["begun"] == 1);
    co_await sleep_for(60s);
    auto r = s.call<&store::add>(1); // lives, and is nobody's but ours
    const int got = co_await r;
    CHECK(got == 2);
    kill(s);
}

TEST_CASE("a driver that dies takes its workers' visits along, not the actors",
          "[N12][cluster][space clients]") {
    with_program(11, 2, &driver_dies);
}

// ---- skein stop --space ------------------------------------------------------------------------

task<result<cluster::stop_space_reply>> ask_stop(test::sim_nodes* c, std::string space) {
    cluster::tool_options how;
    how.head = c->head_address();
    how.secret = c->secret();
    how.host = "tool";
    how.pid = 1;
    auto asking = as_result(
        cluster::ask_to_stop_space(c->network().host("tool"), std::move(how), std::move(space)));
    co_return co_await asking;
}

task<void> stopped(test::sim_nodes* c, driver*) {
    auto opening = open_store(1, "s", -1);
    const auto s = co_await opening;
    auto second = open_store(1, "t");
    (void)co_await second;
    auto here = s.call<&store::slow>(600'000);
    auto there = remote<&call_twice>(s, 600'000);
    co_await sleep_for(2s);
    auto wrong = ask_stop(c, "nowhere");
    const auto refused = co_await wrong;
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::not_found);
    CHECK(has(std::string(refused.error().what()),
              "there is no namespace \"nowhere\" in this cluster; there are: \"prod\""));
    const auto began = c->loop().now();
    auto stopping = ask_stop(c, "prod");
    const auto told = co_await stopping;
    REQUIRE(told);
    CHECK(told->workers == 2);
    auto ended = said(as_task(here));
    const std::string why = co_await ended;
    CHECK(has(why, "the space server of namespace \"prod\" was lost: it was ended by skein stop"));
    const std::string both = co_await there;
    CHECK(has(both, "it was ended by skein stop"));
    CHECK(c->loop().now() - began < 10s);
    // The next request has a new one, in which nothing is.
    auto looking = said(find_store());
    const std::string gone = co_await looking;
    CHECK(has(gone, "there is no actor named \"s\""));
    CHECK(test::sim_nodes::space_servers("prod") == 1);
    auto again = ask_stop(c, "prod");
    const auto twice = co_await again;
    REQUIRE(twice);
    CHECK(twice->workers == 0);
    co_await sleep_for(10s);
    CHECK(test::sim_nodes::space_servers("prod") == 0);
    auto asking = c->past_jobs();
    const auto past = co_await asking;
    int by_stop = 0;
    for (const auto& j : past)
        by_stop +=
            j.space == "prod" && j.how == static_cast<std::uint8_t>(cluster::job_end::stopped);
    CHECK(by_stop == 2);
}

TEST_CASE("a namespace ends on request: space clients hear why, and the next one is empty",
          "[N13][cluster][space clients]") {
    with_program(12, 2, &stopped);
}

task<void> stopped_cut_off(test::sim_nodes* c, driver*) {
    auto opening = open_store(1);
    const auto s = co_await opening;
    std::size_t at = 0;
    REQUIRE(pid_of_space_server(c, &at) != 0);
    for (const auto* other : {"head", "n1", "n2", "app"})
        if (c->at(at).host != other) c->network().partition(c->at(at).host, other);
    const auto lost = c->loop().now();
    co_await sleep_for(500ms);
    auto stopping = ask_stop(c, "prod"); // its node is not known to be away yet
    const auto told = co_await stopping;
    REQUIRE(told);
    auto looking = said(find_store());
    const std::string gone = co_await looking;
    CHECK(has(gone, "there is no actor named \"s\""));
    CHECK(c->loop().now() - lost > 32s); // its agent had to give up first
    CHECK(test::sim_nodes::space_servers("prod") == 1);
    auto late = said(as_task(s.call<&store::add>(1)));
    const std::string why = co_await late;
    CHECK(has(why, "it was ended by skein stop"));
    c->network().heal_all();
}

TEST_CASE("a namespace that was ended on a node that is cut off gets no second space server while "
          "the first "
          "may live",
          "[N3][N13][cluster][space clients]") {
    with_program(14, 2, &stopped_cut_off);
}

} // namespace guests_test

// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/proc/claims.hpp>
#include <skein/proc/shared_memory.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/sched/demands.hpp>
#include <skein/wire/encode.hpp>

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using rt::detail::call_head;
using rt::detail::call_kind;
using test::in_sim;
using test::sim_cluster;

namespace {

template <class Body>
void with_node(Body body) {
    sim::loop loop(1);
    rt::runtime lonely(rt::runtime_options{});
    const rt::runtime::use current(lonely);
    loop.run(body(lonely));
}

/// The number of a function of this program in calls, by a part of its name.
std::uint32_t number_of(std::string_view name) {
    const auto& all = rt::registry::instance();
    for (std::uint32_t i = 0; i < all.size(); ++i)
        if (all.at(i)->name.find(name) != std::string::npos) return i;
    FAIL("no remote function is called " << name);
    return 0;
}

template <class... A>
byte_buffer call_of(std::string_view function, call_kind kind, unique_number target,
                    const A&... args) {
    wire::writer out;
    call_head head;
    head.function = number_of(function);
    head.kind = kind;
    head.target = actor_id(target);
    head.encode(out, {});
    (wire::encode(out, args), ...);
    return std::move(out).take();
}

/// A call that says that another process has made it.
byte_buffer in_the_name_of(unique_number caller) {
    wire::writer out;
    call_head head;
    head.function = number_of("rt_test::twice(");
    head.who.id = call_id(caller);
    head.is_told = true;
    head.encode(out, {});
    wire::encode(out, 1);
    return std::move(out).take();
}

net::connection_options options_of(std::string name) {
    net::connection_options o;
    o.secret = net::token::from_hex(std::string(64, 'a')).value();
    o.self.name = std::move(name);
    o.self.host = "sim";
    o.self.registry_hash = rt::registry::instance().hash();
    rt::detail::worker_hello hello;
    hello.incarnation = 1 + rt::detail::hash_text(o.self.name) % 1000;
    o.self.extra = wire::encode(hello);
    return o;
}

/// Two connected ends in a simulated world: one for a runtime, one for a test that says what it
/// likes.
struct raw_link {
    std::shared_ptr<net::connection> of_node, of_test;
};
task<void> accept_into(net::listener* at, std::shared_ptr<net::connection>* out) {
    auto accepted = at->accept();
    auto stream = co_await accepted;
    auto shaken = net::connection::accept(std::move(stream), options_of("runtime"));
    *out = co_await shaken;
}
task<raw_link> make_raw_link(sim::network* network) {
    const auto at = net::address::sim("runtime", 1);
    auto listener = network->host("runtime").listen(at);
    raw_link out;
    scope accepting;
    accepting.spawn(accept_into(listener.get(), &out.of_node));
    auto connecting = net::connection::connect(network->host("test"), at, options_of("test"));
    out.of_test = co_await connecting;
    auto joined = accepting.join();
    co_await joined;
    co_return out;
}

/// Runs body(runtime, end of the test) beside a worker whose driver is the test. Gives why its link
/// ended.
template <class Body>
std::string with_raw_driver(Body body) {
    sim::loop loop(1);
    sim::network network(loop, sim::faults{});
    std::string why;
    const auto everything = [](sim::network* on, Body run, std::string* ended) -> task<void> {
        auto making = make_raw_link(on);
        auto link = co_await making;
        rt::runtime worker(rt::runtime_options{"worker-1", "sim", 7});
        scope serving;
        serving.spawn(worker.serve_driver(link.of_node));
        auto work = run(&worker, link.of_test);
        co_await work;
        auto closing = link.of_test->close();
        co_await closing;
        auto joined = serving.join();
        co_await joined;
        if (link.of_node->failure()) *ended = link.of_node->failure()->text();
    };
    loop.run(everything(&network, body, &why));
    return why;
}

/// The same for a driver whose only worker is the test.
template <class Body>
void with_raw_worker(rt::runtime::exit_reason after, Body body) {
    sim::loop loop(1);
    sim::network network(loop, sim::faults{});
    rt::runtime_options who;
    who.credit_calls = 1'000'000; // the test begins nothing
    rt::runtime driver(who);
    const rt::runtime::use current(driver);
    const auto everything = [](sim::network* on, rt::runtime* self, rt::runtime::exit_reason end,
                               Body run) -> task<void> {
        auto making = make_raw_link(on);
        auto link = co_await making;
        scope serving;
        serving.spawn(self->serve_worker(link.of_node, std::move(end)));
        auto work = run(link.of_test);
        co_await work;
        auto bye = self->close();
        co_await bye;
        auto joined = serving.join();
        co_await joined;
    };
    loop.run(everything(&network, &driver, std::move(after), body));
}

task<std::string> throws_instead(const rt::peer&) {
    throw error(errc::io, "too many open files");
    co_return "";
}

/// Processor time of losing a worker with n calls, each of a name of its own.
double seconds_of_losing(int n) {
    const auto now = [] {
        timespec t{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    double spent = 0;
    with_raw_worker(nullptr, [n, now, out = &spent](std::shared_ptr<net::connection> peer) {
        return [](int calls, auto clock, double* seconds,
                  std::shared_ptr<net::connection> end) -> task<void> {
            std::vector<ref<int>> refs;
            for (int i = 0; i < calls; ++i) {
                const auto name = "call-" + std::to_string(i);
                refs.push_back(remote<&twice>.with({.cpus = 0, .retries = 0, .name = name})(i));
            }
            co_await sleep_for(1s); // all are there
            const double begin = clock();
            end->abort(error(errc::reset, "gone"));
            for (auto& r : refs) {
                auto asked = as_result(r);
                const auto outcome = co_await std::move(asked);
                if (outcome) FAIL("a call has survived its worker");
            }
            *seconds = clock() - begin;
        }(n, now, out, std::move(peer));
    });
    return spent;
}

} // namespace

TEST_CASE("calls wait for the first worker, which is asked for once", "[rt][runtime]") {
    with_node([](rt::runtime& n) -> task<void> {
        int asked = 0;
        n.on_first_call([&asked] { ++asked; });
        auto a = remote<&twice>(1);
        auto b = remote<&twice>(2);
        CHECK(asked == 1);
        CHECK(n.pending() == 2);
        n.give_up(error(errc::not_found, "no worker can be started"));
        auto ra = as_result(a);
        auto outcome = co_await std::move(ra);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().text() == "no worker can be started");
        CHECK(n.pending() == 0);
        auto rb = as_result(remote<&twice>(3)); // and so do later ones
        {
            const auto got = co_await std::move(rb);
            CHECK_FALSE(got);
        }
    });
}

TEST_CASE("closing a runtime ends what waits", "[P8][rt][runtime]") {
    with_node([](rt::runtime& n) -> task<void> {
        auto a = as_result(remote<&twice>(1));
        auto bye = n.close();
        co_await bye;
        auto outcome = co_await std::move(a);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::closed);
        auto late = as_result(remote<&twice>(1));
        auto refused = co_await std::move(late);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::closed);
    });
}

TEST_CASE("a worker that falls silent is given up and its tasks run elsewhere",
          "[F8][rt][runtime]") {
    in_sim(2, 2, [](sim_cluster& c) -> task<void> {
        std::vector<ref<int>> refs;
        for (int i = 0; i < 4; ++i) refs.push_back(remote<&later>(i, 2000));
        co_await sleep_for(100ms);
        c.network().isolate(sim_cluster::host_of(0));
        for (int i = 0; i < 4; ++i) {
            const auto got = co_await refs[std::size_t(i)];
            CHECK(got == i);
        }
        CHECK(c.driver().stats().workers_lost >= 1);
        CHECK(c.driver().stats().retried >= 1);
        c.network().heal_all();
    });
}

TEST_CASE("the world is the same for the same seed", "[rt][runtime]") {
    const auto trace = [](std::uint64_t seed) {
        sim::loop loop(seed);
        sim::network network(loop, sim::faults{});
        sim_cluster cluster(loop, network, 2);
        loop.run(cluster.run([](sim_cluster& c) -> task<void> {
            std::vector<ref<int>> refs;
            for (int i = 0; i < 50; ++i) refs.push_back(remote<&later>(i, i));
            co_await sleep_for(30ms);
            c.kill(0);
            for (auto& r : refs) (void)co_await r;
        }));
        CHECK(network.open_streams() == 0);
        return loop.trace_hash();
    };
    CHECK(trace(5) == trace(5));
    CHECK(trace(5) != trace(6));
}

TEST_CASE("after a run no call, coroutine, actor or stream is left", "[rt][runtime]") {
    sim::loop loop(3);
    sim::network network(loop, sim::faults{});
    {
        sim_cluster cluster(loop, network, 2);
        loop.run(cluster.run([](sim_cluster&) -> task<void> {
            auto c = co_await actor<counter>(1);
            auto running = c.call<&counter::add_later>(1, 1000000);
            auto task_too = remote<&later>(1, 1000000);
            co_await sleep_for(10ms);
        }));
        CHECK(cluster.driver().pending() == 0);
        CHECK(cluster.running() == 0);
        CHECK(cluster.actors() == 0);
    }
    CHECK(network.open_streams() == 0);
}

TEST_CASE("frames that are no calls break the link and nothing else", "[F10][rt][runtime]") {
    // A peer that knows the token but speaks nonsense: the driver drops it and goes on with the
    // others.
    sim::loop loop(4);
    sim::network network(loop, sim::faults{});
    sim_cluster cluster(loop, network, 1);
    loop.run(cluster.run([](sim_cluster& c) -> task<void> {
        auto good = remote<&twice>(4);
        {
            const auto got = co_await good;
            CHECK(got == 8);
        }
        for (std::uint16_t kind : {0, 1, 9}) {
            auto fake = c.impostor();
            auto peer = co_await fake;
            peer->send(kind, 0, 1, as_bytes("nonsense"), {});
            auto ended = peer->wait_closed();
            co_await ended;
        }
        auto still = remote<&twice>(5);
        {
            const auto got = co_await still;
            CHECK(got == 10);
        }
    }));
}

TEST_CASE("a reply from a link that the call was not sent to ends that link",
          "[F10][rt][runtime]") {
    in_sim(5, 1, [](sim_cluster& c) -> task<void> {
        auto slow = remote<&later>(1000, 500); // the first call: slot 0, generation 1
        co_await sleep_for(50ms);
        auto fake = c.impostor();
        auto peer = co_await fake;
        auto at_peer = remote<&twice>.with({.retries = 0})(1); // the other worker is busy
        co_await sleep_for(50ms);
        wire::writer body;
        wire::encode(body, 666);
        peer->send(rt::detail::message_reply, rt::detail::reply_ok, std::uint64_t{1} << 32,
                   body.bytes(), {});
        auto ended = peer->wait_closed();
        co_await ended;
        auto asked = as_result(at_peer);
        const auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().text().find("answers for rt_test::later") != std::string::npos);
        const int got = co_await slow;
        CHECK(got == 1000);
    });
}

TEST_CASE("'started' from a link that the call was not sent to ends that link", "[rt][runtime]") {
    in_sim(5, 1, [](sim_cluster& c) -> task<void> {
        auto slow = remote<&later>(1000, 500);
        co_await sleep_for(50ms);
        auto fake = c.impostor();
        auto peer = co_await fake;
        peer->send(rt::detail::message_started, 0, std::uint64_t{1} << 32, {}, {});
        auto ended = peer->wait_closed();
        co_await ended;
        const int got = co_await slow;
        CHECK(got == 1000);
    });
}

TEST_CASE("a reply that is neither value nor failure ends its link", "[rt][runtime]") {
    with_raw_worker(nullptr, [](std::shared_ptr<net::connection> peer) -> task<void> {
        auto r = remote<&twice>.with({.retries = 0})(1);
        peer->send(rt::detail::message_reply, 9, std::uint64_t{1} << 32, {}, {});
        auto asked = as_result(r);
        const auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().text().find("neither value nor failure") != std::string::npos);
    });
}

TEST_CASE("a call whose kind is not that of its function ends the link, and no worker",
          "[F10][rt][runtime]") {
    struct sent {
        std::string_view function;
        call_kind kind;
    };
    for (const auto& wrong :
         {sent{"rt_test::counter::add(", call_kind::task},
          sent{"rt_test::counter::add_later(", call_kind::task},
          sent{"rt_test::counter(int)", call_kind::task},
          sent{"rt_test::counter(int)", call_kind::method},
          sent{"rt_test::twice(", call_kind::method}, sent{"rt_test::twice(", call_kind::create},
          sent{"rt_test::counter::add(", call_kind::create}}) {
        const auto why =
            with_raw_driver([wrong](rt::runtime*, std::shared_ptr<net::connection> peer) {
                return [](sent what, std::shared_ptr<net::connection> end) -> task<void> {
                    end->send(rt::detail::message_call, 0, 1,
                              call_of("rt_test::counter(int)", call_kind::create, {0, 7}, 1), {});
                    end->send(rt::detail::message_call, 0, 2,
                              call_of(what.function, what.kind, {0, 7}, 1), {});
                    auto ended = end->wait_closed();
                    co_await ended;
                }(wrong, std::move(peer));
            });
        CHECK(why.find("none of its kind") != std::string::npos);
    }
}

TEST_CASE("a method that is sent to an actor of another type ends the link, and no worker",
          "[F10][rt][runtime]") {
    const auto why = with_raw_driver(
        [](rt::runtime* worker, std::shared_ptr<net::connection> peer) -> task<void> {
            peer->send(rt::detail::message_call, 0, 1,
                       call_of("rt_test::counter(int)", call_kind::create, {0, 7}, 1), {});
            co_await sleep_for(10ms);
            CHECK(worker->actors() == 1);
            peer->send(rt::detail::message_call, 0, 2,
                       call_of("rt_test::journal::note(", call_kind::method, {0, 7}, 1), {});
            auto ended = peer->wait_closed();
            co_await ended;
        });
    CHECK(why.find("of actor 7, which is a rt_test::counter") != std::string::npos);
}

TEST_CASE("a driver passes no wrong call on to a worker", "[rt][runtime]") {
    in_sim(5, 1, [](sim_cluster& c) -> task<void> {
        auto mine = co_await actor<counter>(1);
        const auto id = mine.id().value();
        const byte_buffer wrong[] = {
            call_of("rt_test::journal::note(", call_kind::method, id, 1),
            call_of("rt_test::counter::add(", call_kind::task, id, 1),
            call_of("rt_test::twice(", call_kind::method, id, 1),
            // An actor under a number that another process gives, and one that there is.
            call_of("rt_test::counter(int)", call_kind::create, {123456, 1}, 1),
            call_of("rt_test::counter(int)", call_kind::create, id, 1), in_the_name_of({123456, 1}),
            byte_buffer(15), // too short for any
        };
        for (const auto& body : wrong) {
            auto fake = c.impostor();
            auto peer = co_await fake;
            peer->send(rt::detail::message_call, 0, 1, body, {});
            auto ended = peer->wait_closed();
            co_await ended;
        }
        auto fake = c.impostor(); // two calls of one number
        auto peer = co_await fake;
        for (int i = 0; i < 2; ++i)
            peer->send(rt::detail::message_call, 0, 1,
                       call_of("rt_test::later(", call_kind::task, {}, 1, 1000), {});
        auto ended = peer->wait_closed();
        co_await ended;
        CHECK(c.incarnation(0) == 1);
        auto still = mine.call<&counter::add>(1);
        const int got = co_await still;
        CHECK(got == 2);
    });
}

TEST_CASE("the calls of a lost worker are settled, also when its end cannot be seen",
          "[C4][rt][runtime]") {
    with_raw_worker(&throws_instead, [](std::shared_ptr<net::connection> peer) -> task<void> {
        auto r = remote<&twice>.with({.retries = 0})(1);
        co_await sleep_for(10ms);
        peer->abort(error(errc::reset, "gone"));
        auto asked = as_result(r);
        const auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::worker_lost);
        CHECK(outcome.error().text().find("too many open files") != std::string::npos);
    });
}

TEST_CASE("settling a lost worker takes time in proportion to its calls", "[rt][runtime]") {
    (void)seconds_of_losing(1000);
    const double few = seconds_of_losing(4000);
    const double many = seconds_of_losing(32000);
    CHECK(many / few < 24); // it was 60: each call looked at all others
}

TEST_CASE("the memory of a large call is given back", "[rt][runtime]") {
    in_sim(5, 1, [](sim_cluster&) -> task<void> {
        const auto used = [] {
            const auto m = ::mallinfo2();
            return m.uordblks + m.hblkhd;
        };
        auto c = co_await actor<journal>();
        auto warm = c.call<&journal::all>();
        (void)co_await warm;
        const auto before = used();
        {
            auto r = c.call<&journal::echo>(std::vector<int>(8 << 20, 7)); // 32 MiB both ways
            const auto got = co_await std::move(r);
            CHECK(got.size() == 8 << 20);
        }
        co_await sleep_for(1s);
        CHECK(used() < before + (4 << 20));
    });
}

TEST_CASE("the head of a call is read back, and any shorter piece of it is refused",
          "[rt][runtime]") {
    const time_point now(5s);
    call_head sent;
    sent.function = 7;
    sent.kind = call_kind::method;
    sent.retries = 2;
    sent.cpus = 3;
    sent.target = actor_id({1, 2});
    sent.who = {call_id({3, 4}), call_id({5, 6}), call_id({7, 8}), now + 2s};
    for (const bool told : {false, true}) {
        sent.is_told = told;
        wire::writer out;
        sent.encode(out, now);
        CHECK(out.size() % 16 == 0);
        for (std::size_t n = 0; n <= out.size(); ++n) {
            wire::reader in(out.bytes().first(n));
            call_head got;
            const bool read = got.decode(in, 99, time_point(10s));
            CHECK(read == (n == out.size()));
            if (!read) continue;
            CHECK(got.function == 7);
            CHECK(got.target == sent.target);
            CHECK(got.who.id == call_id({told ? 3u : 99u, 4}));
            CHECK(got.who.trace == (told ? sent.who.trace : got.who.id));
            CHECK(got.who.parent == (told ? sent.who.parent : call_id{}));
            CHECK(got.who.until == (told ? time_point(12s) : time_point::max()));
        }
    }
}

TEST_CASE("a demand is its environment, too, and keeps it on its way", "[rt][runtime]") {
    sched::demand_table table;
    const auto number = [&table](const call_options& how) {
        return rt::detail::demand_of(table, how).value();
    };
    CHECK(number({}) == sched::one_cpu);
    const auto with = number({.env = "A=1\nB=2"});
    CHECK(with > sched::one_cpu);
    CHECK(number({.env = "B=2\nA=1"}) == with);
    CHECK(number({.env = "A=1"}) != with);
    CHECK(number({.env = "A=1\nB=2", .cwd = "/"}) != with);
    CHECK(number({.cpus = 0, .env = "A=1\nB=2"}) != with);
    CHECK_FALSE(table.at(with).only_cpus); // no worker of all tasks has it
    CHECK_FALSE(table.at(with).is_simple);
    CHECK(table.at(with).need.cpu == sched::amount(1));
    CHECK(table.text(with) == "cpu=1\n\nA=1\nB=2");
    for (const auto& how :
         {call_options{.env = "A=1\nB=2"}, call_options{.cwd = "/data"},
          call_options{.gpus = 1, .on = label("zone=a"), .env = "C= @ \nD=", .cwd = "/a b@c"}}) {
        const auto here = number(how);
        sched::demand_table other; // of the driver that a worker asks
        const auto there = other.number_of_text(table.text(here));
        REQUIRE(there);
        CHECK(other.at(*there).env == table.at(here).env);
        CHECK(other.at(*there).label == table.at(here).label);
        CHECK(other.at(*there).need == table.at(here).need);
        CHECK(other.text(*there) == table.text(here));
        CHECK(table.number_of_text(table.text(here)).value() == here);
    }
    CHECK_FALSE(table.number_of_text("cpu=1\nrelative\n"));
    CHECK_FALSE(table.number_of_text("cpu=1\n\nSKEIN_X=1"));
    CHECK_FALSE(rt::detail::demand_of(table, {.env = "A"}));
    CHECK_FALSE(rt::detail::demand_of(table, {.on = label("a\nb")}));
}

TEST_CASE("what is remembered of the tasks at a worker does not grow with all that were sent",
          "[rt][runtime]") {
    rt::peer at; // its worker begins a task that lasts, and ends all others out of order
    at.page = proc::claims(proc::shared_memory::create(proc::claims::bytes));
    std::size_t most = 0;
    for (std::uint64_t order = 1; order <= 100'000; ++order) {
        at.remember_task({rt::slot_id(order), order});
        REQUIRE(at.page.begin());
        most = std::max(most, at.tasks.size());
    }
    CHECK(most <= 2 * proc::claims::entries);
    // What has not begun can still be taken back: none of it is forgotten.
    for (std::uint64_t order = 100'001; order <= 103'000; ++order)
        at.remember_task({rt::slot_id(order), order});
    CHECK(at.prune_tasks() == 3'000);
    CHECK(at.tasks.front().order == 100'001);
}

TEST_CASE("a worker that says it is another process is not taken in", "[rt][runtime]") {
    in_sim(5, 1, [](sim_cluster& c) -> task<void> {
        auto r = remote<&twice>(1);
        (void)co_await r; // the worker is there
        for (const auto incarnation :
             {std::uint64_t{0}, c.driver().incarnation(), c.incarnation_id(0)}) {
            auto fake = c.impostor(incarnation);
            auto peer = co_await fake;
            auto ended = peer->wait_closed();
            co_await ended;
            CHECK(c.driver().workers() == 1);
        }
        auto again = remote<&twice>(4);
        const int got = co_await again;
        CHECK(got == 8);
    });
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/children.hpp>

#include <csignal>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace std::chrono_literals;

namespace {

/// A host with programs, without faults.
struct small_world {
    explicit small_world(std::uint64_t seed = 1) : loop(seed) {}
    sim::loop loop;
    sim::network net{loop, sim::faults{}};
    sim::children here{net, "a"};

    template <class Body>
    void run(Body body) {
        loop.run(body(this));
        CHECK(here.running().empty());
        CHECK(net.open_streams() == 0);
    }
};

proc::child_options in_role(std::string role) {
    proc::child_options how;
    how.role = std::move(role);
    how.name = "child-1";
    how.message = to_buffer(as_bytes(std::string_view("an order")));
    return how;
}

task<std::unique_ptr<proc::child>> begun(proc::children* where, std::string role) {
    auto starting = where->start(in_role(std::move(role)));
    co_return co_await starting;
}

task<void> say(net::stream* to, std::string text) {
    const auto bytes = to_buffer(as_bytes(text));
    const byte_span parts[] = {bytes};
    auto writing = to->write_all(parts);
    co_await writing;
}

task<std::string> hear_all(net::stream* from) {
    std::string text;
    std::byte piece[64];
    while (true) {
        auto reading = from->read_some(piece);
        const auto n = co_await reading;
        if (n == 0) co_return text;
        text += to_string(byte_span(piece, n));
    }
}

task<int> tell_boot(sim::process* self) {
    auto stream = self->take_stream();
    const auto& how = self->started_with();
    auto telling = say(stream.get(), how.role + " " + how.name + ": " +
                                         std::string(to_string(byte_span(how.message))));
    co_await telling;
    self->leave_last_words("done with it");
    co_return 3;
}

task<int> sleep_long(sim::process* self) {
    auto stream = self->take_stream();
    self->set_usage({1 << 20, 7ms});
    co_await sleep_for(1000s);
    co_return 0;
}

/// Says one letter every 10 ms.
task<int> tick(sim::process* self) {
    auto stream = self->take_stream();
    for (int i = 0; i < 100; ++i) {
        auto telling = say(stream.get(), "x");
        co_await telling;
        co_await sleep_for(10ms);
    }
    co_return 0;
}

} // namespace

TEST_CASE("a simulated child gets its message and a stream, and leaves a code and last words") {
    small_world world;
    world.here.add("teller", &tell_boot);
    world.run([](small_world* w) -> task<void> {
        auto starting = begun(&w->here, "teller");
        auto child = co_await starting;
        CHECK(child->name() == "child-1");
        CHECK(child->running());
        auto stream = child->take_stream();
        REQUIRE(stream);
        CHECK_FALSE(child->take_stream());
        auto hearing = hear_all(stream.get());
        const auto said = co_await hearing;
        CHECK(said == "teller child-1: an order");
        auto ending = child->ended();
        const auto end = co_await ending;
        CHECK(end.status.code() == 3);
        CHECK(end.last_words == "done with it");
        CHECK_FALSE(child->running());
    });
}

TEST_CASE("an error of a simulated program is its last words") {
    small_world world;
    world.here.add("broken", [](sim::process*) -> task<int> {
        co_await yield();
        throw error(errc::corrupt, "the file is torn");
    });
    world.run([](small_world* w) -> task<void> {
        auto starting = begun(&w->here, "broken");
        auto child = co_await starting;
        auto ending = child->ended();
        const auto end = co_await ending;
        CHECK(end.status.code() == 1);
        CHECK(end.last_words == "the file is torn");
    });
}

TEST_CASE("SIGTERM cancels a simulated program, which ends by it or with a code of its own") {
    small_world world;
    world.here.add("sleeper", &sleep_long);
    world.here.add("polite", [](sim::process* self) -> task<int> {
        auto sleeping = as_result(sleep_long(self));
        const auto outcome = co_await sleeping;
        co_return outcome ? 0 : 42;
    });
    world.run([](small_world* w) -> task<void> {
        for (const auto* role : {"sleeper", "polite"}) {
            auto starting = begun(&w->here, role);
            auto child = co_await starting;
            co_await sleep_for(1s);
            CHECK(child->usage().resident_bytes == 1 << 20);
            child->signal(SIGTERM);
            auto ending = child->ended();
            const auto end = co_await ending;
            CHECK(end.status.signal() == (std::string(role) == "polite" ? 0 : SIGTERM));
            CHECK(end.status.code() == (std::string(role) == "polite" ? 42 : -1));
            CHECK(child->usage().resident_bytes == 0);
        }
        CHECK(w->loop.elapsed() < 3s);
    });
}

TEST_CASE("a killed process says nothing more: its streams end, what it sent before arrives") {
    small_world world;
    world.here.add("stubborn", [](sim::process* self) -> task<int> {
        auto stream = self->take_stream();
        auto first = say(stream.get(), "before");
        co_await first;
        try {
            co_await sleep_for(1000s);
        } catch (const error&) {}
        auto second = say(stream.get(), "after");
        co_await second; // throws: there is no such stream any more
        co_return 0;
    });
    world.run([](small_world* w) -> task<void> {
        auto starting = begun(&w->here, "stubborn");
        auto child = co_await starting;
        auto stream = child->take_stream();
        co_await sleep_for(1s);
        w->here.kill(child->pid());
        CHECK(w->net.counts().of(sim::fault::kill) == 1);
        auto hearing = hear_all(stream.get());
        const auto said = co_await hearing;
        CHECK(said == "before");
        auto ending = child->ended();
        const auto end = co_await ending;
        CHECK(end.status.signal() == SIGKILL);
        CHECK(w->loop.elapsed() < 2s);
    });
}

TEST_CASE("a child whose object goes is killed") {
    small_world world;
    world.here.add("sleeper", &sleep_long);
    world.run([](small_world* w) -> task<void> {
        auto starting = begun(&w->here, "sleeper");
        auto child = co_await starting;
        CHECK(w->here.running().size() == 1);
        child.reset();
    });
    CHECK(world.loop.elapsed() < 1s);
}

TEST_CASE("a process that stands still says nothing until it goes on, and is not asked meanwhile") {
    small_world world;
    world.here.add("ticker", &tick);
    world.run([](small_world* w) -> task<void> {
        auto starting = begun(&w->here, "ticker");
        auto child = co_await starting;
        auto stream = child->take_stream();
        co_await sleep_for(105ms);
        child->signal(SIGSTOP);
        co_await sleep_for(10ms); // what was under way arrives
        std::byte heard[256];
        const auto before = stream->try_read(heard);
        CHECK(before.value_or(0) >= 10);
        child->signal(SIGTERM);
        co_await sleep_for(5s);
        CHECK_FALSE(stream->try_read(heard));
        CHECK(child->running());
        child->signal(SIGCONT);
        auto ending = child->ended();
        const auto end = co_await ending;
        CHECK(end.status.signal() == SIGTERM);
    });
}

TEST_CASE("starts of simulated children fail like real ones, and hang until they are cancelled") {
    small_world world;
    world.here.add("sleeper", &sleep_long);
    world.run([](small_world* w) -> task<void> {
        auto& faults = w->here.faults();
        const auto fails_with = [w](std::string role) -> task<errc> {
            auto starting = as_result(with_timeout(begun(&w->here, std::move(role)), 10s));
            const auto outcome = co_await starting;
            co_return outcome ? errc::unknown : outcome.error().code();
        };
        auto unknown = fails_with("nobody");
        const auto unknown_code = co_await unknown;
        CHECK(unknown_code == errc::not_found);
        faults.no_descriptors = 1;
        auto no_descriptors = fails_with("sleeper");
        const auto no_descriptors_code = co_await no_descriptors;
        CHECK(no_descriptors_code == errc::exhausted);
        faults.no_descriptors = 0;
        faults.not_permitted = 1;
        auto not_permitted = fails_with("sleeper");
        const auto not_permitted_code = co_await not_permitted;
        CHECK(not_permitted_code == errc::permission_denied);
        faults.not_permitted = 0;
        faults.hang = 1;
        auto hangs = fails_with("sleeper");
        const auto hangs_code = co_await hangs;
        CHECK(hangs_code == errc::timeout);
        CHECK(w->net.counts().of(sim::fault::start_failed) == 2);
        CHECK(w->net.counts().of(sim::fault::start_hung) == 1);
        auto large = in_role("sleeper");
        large.message.resize(proc::most_boot_bytes + 1);
        auto refused = as_result(w->here.start(std::move(large)));
        const auto outcome = co_await refused;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::too_large);
    });
}

TEST_CASE("what a simulated process opens is closed with it") {
    small_world world;
    world.here.add("server", [](sim::process* self) -> task<int> {
        auto door = self->network().listen(net::address::sim("", 7));
        auto accepting = door->accept();
        auto stream = co_await accepting;
        co_await sleep_for(1000s);
        co_return 0;
    });
    world.run([](small_world* w) -> task<void> {
        auto starting = begun(&w->here, "server");
        auto child = co_await starting;
        co_await sleep_for(10ms);
        auto connecting = w->net.host("b").connect(net::address::sim("a", 7));
        auto stream = co_await connecting;
        co_await sleep_for(10ms);
        child->kill();
        auto hearing = hear_all(stream.get());
        const auto said = co_await hearing;
        CHECK(said.empty());
        auto again = as_result(w->net.host("b").connect(net::address::sim("a", 7)));
        const auto refused = co_await again;
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::refused);
    });
}

TEST_CASE("the same seed kills and pauses the same processes at the same times") {
    const auto trace_of = [](std::uint64_t seed) {
        small_world world(seed);
        world.here.add("ticker", &tick);
        world.here.faults().kill_every = 100ms;
        world.here.faults().pause_every = 100ms;
        world.here.begin_faults();
        world.run([](small_world* w) -> task<void> {
            for (int i = 0; i < 20; ++i) {
                auto starting = begun(&w->here, "ticker");
                auto child = co_await starting;
                auto ending = child->ended();
                (void)co_await ending;
            }
            w->here.stop_faults();
        });
        CHECK(world.net.counts().of(sim::fault::kill) > 0);
        CHECK(world.net.counts().of(sim::fault::pause) > 0);
        return world.loop.trace_hash();
    };
    CHECK(trace_of(7) == trace_of(7));
    CHECK(trace_of(7) != trace_of(8));
}

TEST_CASE("a process lives by the clock of the host that starts it") {
    const auto sleeper = [](sim::process*) -> task<int> {
        auto pause = sleep_for(110s);
        co_await pause;
        co_return 0;
    };
    const auto body = [](proc::children* where, sim::loop* world) -> task<duration> {
        auto starting = begun(where, "sleeper");
        auto child = co_await starting;
        auto ending = child->ended();
        const auto end = co_await ending;
        CHECK(end.status.success());
        co_return world->elapsed();
    };
    sim::loop loop(1);
    sim::network net(loop, sim::faults{});
    sim::host_loop fast(loop, {100'000'000, 3s});
    sim::children here(net, "a");
    here.add("sleeper", sleeper);
    const auto took = loop.run(sim::run_on(fast, body(&here, &loop)));
    CHECK(took > 100s);
    CHECK(took < 101s);
}

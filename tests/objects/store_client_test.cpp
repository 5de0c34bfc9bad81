// SPDX-License-Identifier: Apache-2.0
// A store and the processes that use it, in the simulated world: what one makes others hold and read,
// who waits for room, and what is left when a process has gone.
#include "objects/store_support.hpp"

#include <skein/core/sleep.hpp>
#include <skein/net/real_loop.hpp>

#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace store_client_test {

using namespace skein;
using namespace std::chrono_literals;
using objects::object_ptr;
using objects_test::user;
using objects_test::world;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

/// Where it is, in a store with room for all.
byte_span bytes_of(const object_ptr& which) { return objects::read_now(which)->bytes(); }

/// An object of so many bytes, each of them `with`.
task<object_ptr> make(user* by, std::uint64_t bytes, int with, time_span patience = 0s,
                      objects::process_id to = {}) {
    auto creating = by->client->create(bytes, patience);
    auto made = co_await creating;
    if (!made) co_return nullptr;
    std::memset(made->bytes().data(), with, made->bytes().size());
    auto sealing = by->client->seal(std::move(*made), to);
    co_return co_await sealing;
}

TEST_CASE("what one process makes another claims and reads in place", "[objects][store]") {
    world w(8 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto joining_too = w.join("b");
        auto b = co_await joining_too;
        auto making = make(a.get(), mebi, 7);
        auto mine = co_await making;
        REQUIRE(mine);
        auto claiming = b->client->claim({mine->name()});
        auto theirs = co_await claiming;
        REQUIRE(theirs.at(0));
        CHECK(bytes_of(theirs[0]).data() == bytes_of(mine).data()); // one copy
        mine.reset();
        co_await sleep_for(1s);
        CHECK(w.store->usage().sealed == mebi);
        CHECK(bytes_of(theirs[0])[mebi - 1] == std::byte{7});
        theirs.clear();
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 0);
    });
}

TEST_CASE("an object that is made for another process is held by that alone", "[objects][store]") {
    world w(8 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto creating = a->client->create(mebi, 0s);
        auto made = co_await creating;
        const auto name = made->name();
        const objects::process_id later(77); // it comes when it has heard of the object
        auto sealing = a->client->seal(std::move(*made), later);
        const auto none = co_await sealing;
        CHECK(!none);
        auto leaving = w.leave(*a);
        co_await leaving; // and its maker has gone
        CHECK(w.store->usage().sealed == mebi);
        auto joining_too = w.join("b", 77);
        auto b = co_await joining_too;
        const auto all = b->client->adopt({name}, a->client->self());
        const auto got = all.at(0);
        auto reading = objects::read(got);
        const auto bytes = co_await reading;
        CHECK(bytes->bytes().size() == mebi);
        co_await sleep_for(1s);
        CHECK(w.store->usage().processes == 1);
        auto leaving_too = w.leave(*b);
        co_await leaving_too;
        CHECK(w.store->usage().objects == 0);
        CHECK(bytes->bytes()[0] == std::byte{0}); // it can still be read
    });
}

TEST_CASE("what is made for a process that never comes waits for its end", "[objects][store]") {
    world w(8 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), mebi, 1, 0s, objects::process_id(77));
        (void)co_await making;
        co_await sleep_for(10min); // it may compute
        CHECK(w.store->usage().objects == 1);
        a->client->lost(objects::process_id(77), false); // by a broken link, for all that it knows
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 1);
        a->client->lost(objects::process_id(77), true);
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 0);
    });
}

TEST_CASE(
    "who finds no room waits in line, and is told after a while; one alone is refused at once",
    "[objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), 3 * mebi, 1);
        auto first = co_await making;
        auto at_once = make(a.get(), 2 * mebi, 2);
        const auto none = co_await at_once;
        CHECK(!none);
        auto too_large = make(a.get(), 5 * mebi, 2, 10s);
        const auto never = co_await too_large;
        CHECK(!never);
        scope waiting;
        object_ptr second;
        waiting.spawn([](user* by, object_ptr* into) -> task<void> {
            auto making = make(by, 2 * mebi, 2, 10s);
            *into = co_await making;
        }(a.get(), &second));
        co_await sleep_for(2s);
        CHECK(w.store->waiting() == 1);
        CHECK(!second);
        first.reset();
        auto joined = waiting.join();
        co_await joined;
        REQUIRE(second);
        CHECK(bytes_of(second)[0] == std::byte{2});
        const auto began = loop::current().now();
        auto in_vain = make(a.get(), 3 * mebi, 3, 10s);
        const auto late = co_await in_vain;
        CHECK(!late);
        CHECK(loop::current().now() - began >= 10s);
        CHECK(w.store->waiting() == 0);
    });
}

TEST_CASE("a writer that dies leaves nothing, a reader that dies lets go, and those in line go on",
          "[objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto joining_too = w.join("b");
        auto b = co_await joining_too;
        auto creating = a->client->create(3 * mebi, 0s);
        auto half = co_await creating;
        REQUIRE(half);
        scope waiting;
        object_ptr got;
        waiting.spawn([](user* by, object_ptr* into) -> task<void> {
            auto making = make(by, 2 * mebi, 2, 60s);
            *into = co_await making;
        }(b.get(), &got));
        co_await sleep_for(1s);
        CHECK(!got);
        w.network.crash("a");
        auto joined = waiting.join();
        co_await joined;
        REQUIRE(got);
        CHECK(w.store->usage().granted == 0);
        CHECK(w.store->usage().processes == 1);
        auto joining_again = w.join("c");
        auto c = co_await joining_again;
        auto claiming = c->client->claim({got->name()});
        auto held = co_await claiming;
        got.reset();
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 1);
        w.network.crash("c");
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 0);
    });
}

TEST_CASE("objects that are gone are none, those of another program are refused",
          "[V9][objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), mebi, 1);
        auto one = co_await making;
        auto name = one->name();
        auto missing = name;
        missing.number = objects::object_number(99);
        auto claiming = a->client->claim({name, missing});
        const auto got = co_await claiming;
        REQUIRE(got.size() == 2);
        CHECK(got[0]);
        CHECK(!got[1]);
        name.store ^= 2;
        auto refused = as_result(a->client->claim({name}));
        const auto outcome = co_await refused;
        REQUIRE(!outcome);
        CHECK(outcome.error().code() == errc::mismatch);
        CHECK_THROWS_AS(a->client->adopt({name}, a->client->self()), error);
    });
}

TEST_CASE("a process that gives back or takes what it has not goes on with what it has",
          "[objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto dialing = w.dial("a", 5);
        auto wire = co_await dialing;
        auto link = net::requests::over(std::move(wire));
        objects::create_request want;
        want.bytes = mebi;
        auto asking = link->call<objects::create_reply>(want);
        const auto made = co_await asking;
        objects::seal_request done;
        done.which = made.name.number;
        auto sealing = link->call<objects::done_reply>(done);
        (void)co_await sealing;
        objects::release_note lies;
        lies.all.push_back({made.name.number, 2, 0});           // it holds it once
        lies.all.push_back({objects::object_number(99), 1, 0}); // there is none
        link->tell(lies);
        objects::take_note lie;
        lie.from = objects::process_id(77); // which has given nothing
        lie.which.push_back(made.name.number);
        link->tell(lie);
        co_await sleep_for(1s);
        CHECK(link->is_open());
        CHECK(w.store->usage().sealed == mebi);
        objects::release_note truth;
        truth.all.push_back({made.name.number, 1, 0});
        link->tell(truth);
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 0);
        auto closing = link->close();
        co_await closing;
    });
}

TEST_CASE("what a process holds whose link the store has ended is nobody else's until its end",
          "[V3][objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto dialing = w.dial("a", 5);
        auto wire = co_await dialing;
        auto link = net::requests::over(wire);
        objects::create_request want;
        want.bytes = 3 * mebi;
        auto asking = link->call<objects::create_reply>(want);
        (void)co_await asking;
        wire->send(1, 0, 1, {}); // no request
        co_await sleep_for(1s);
        CHECK(!link->is_open());
        CHECK(w.store->usage().granted == 3 * mebi);
        auto closing = link->close();
        co_await closing;
        auto dialing_again = w.dial("a", 5); // its name is not let in again
        auto again = co_await dialing_again;
        auto other = net::requests::over(std::move(again));
        co_await sleep_for(1s);
        CHECK(!other->is_open());
        auto closing_too = other->close();
        co_await closing_too;
        auto joining = w.join("b");
        auto b = co_await joining;
        auto in_vain = make(b.get(), 2 * mebi, 1);
        const auto none = co_await in_vain;
        CHECK(!none);
        b->client->lost(objects::process_id(5), true);
        auto making = make(b.get(), 2 * mebi, 1, 1s);
        const auto made = co_await making;
        CHECK(made);
    });
}

TEST_CASE("a process is told when it has lost the store, and what it holds stays readable",
          "[objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), mebi, 3);
        const auto mine = co_await making;
        int times = 0;
        a->client->set_lost_handler([&times](const error&) { ++times; });
        CHECK(!a->client->is_lost());
        w.network.reset("a", "store");
        co_await sleep_for(1s);
        CHECK(times == 1);
        CHECK(a->client->is_lost());
        CHECK(bytes_of(mine)[mebi - 1] == std::byte{3});
        auto in_vain = make(a.get(), mebi, 4, 1s);
        const auto none = co_await in_vain;
        CHECK(!none);
    });
}

TEST_CASE("a creation that is cancelled gives back what it was granted", "[objects][store]") {
    world w(4 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), 4 * mebi, 1);
        auto all = co_await making;
        auto hasty = as_result(with_timeout(make(a.get(), mebi, 2, 20s), 1s));
        const auto late = co_await hasty;
        CHECK(!late);
        all.reset();
        co_await sleep_for(30s);
        CHECK(w.store->usage().objects == 0);
        CHECK(w.store->waiting() == 0);
    });
}

TEST_CASE("the last pointer may go on another thread, and after the end of its loop",
          "[objects][store]") {
    objects::reading_ptr survivor;
    {
        world w(4 * mebi);
        w.run([&survivor](world& w) -> task<void> {
            auto joining = w.join("a");
            auto a = co_await joining;
            auto making = make(a.get(), mebi, 4);
            auto one = co_await making;
            auto making_too = make(a.get(), mebi, 5);
            const auto other = co_await making_too;
            survivor = objects::read_now(other);
            std::thread([&one] { one.reset(); }).join();
            co_await sleep_for(1s);
            CHECK(w.store->usage().objects == 1);
        });
    }
    CHECK(survivor->bytes()[mebi - 1] == std::byte{5});
    std::thread([&survivor] { survivor.reset(); }).join();
}

} // namespace store_client_test

// SPDX-License-Identifier: Apache-2.0
// Stores of several nodes in the simulated world: one transfer for all that ask, who holds, what ends
// with a process and with a node. Time is the world's: nobody waits for it.
#include "objects/far_support.hpp"

#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace far_objects_test {

using namespace std::chrono_literals;
using objects::object_ptr;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

task<void> heal_after(world* w, node* one, node* other, duration time) {
    co_await sleep_for(time);
    w->network.heal(one->host, other->host);
}

TEST_CASE("what one node has another one brings once, for all that ask", "[objects][far][V10]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(16 * mebi);
        auto& other = w.add(16 * mebi);
        const auto a = w.join(home), b = w.join(other), c = w.join(other);
        auto making = make(a, 5 * mebi + 1, 7);
        auto mine = co_await making;
        REQUIRE(mine);
        auto first = b->claim({mine->name()});
        auto second = c->claim({mine->name()});
        auto both = all(std::move(first), std::move(second));
        auto [at_b, at_c] = co_await both;
        CHECK(is_all(at_b.at(0), 7));
        CHECK(objects::read_now(at_c.at(0))->bytes().data() ==
              objects::read_now(at_b[0])->bytes().data()); // one copy
        CHECK(other.far->statistics().transfers == 1);
        CHECK(other.far->statistics().copies == 1);

        mine.reset(); // its maker holds it no more
        co_await sleep_for(1s);
        CHECK(home.store->usage().objects == 1);
        at_b.clear();
        co_await sleep_for(1s);
        CHECK(is_all(at_c[0], 7));
        at_c.clear();
        co_await sleep_for(1s);
        CHECK(home.store->usage().objects == 0);
        CHECK(other.far->statistics().held == 0);
        CHECK(other.far->statistics().idle == 1);
        co_await sleep_for(12s);
        CHECK(other.store->usage().objects == 0);
    });
}

TEST_CASE("a gift is taken on another node, passed on, and read on a third", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        auto& second = w.add(16 * mebi);
        auto& third = w.add(16 * mebi);
        const auto driver = w.join(hub), maker = w.join(second), reader = w.join(third);
        auto creating = maker->create(mebi, 0s);
        auto fresh = co_await creating;
        REQUIRE(fresh);
        std::memset(fresh->bytes().data(), 3, mebi);
        const auto name = fresh->name();
        auto sealing = maker->seal(std::move(*fresh), driver->self());
        (void)co_await sealing;
        auto got = driver->adopt({name}, maker->self());
        CHECK(!got.at(0)->is_here()); // who passes it on has no copy
        auto leaving = w.leave(maker);
        co_await leaving;
        CHECK(second.store->usage().objects == 1);

        auto giving = driver->give(got, reader->self());
        co_await giving;
        got.clear();
        co_await sleep_for(1s);
        auto held = reader->adopt({name}, driver->self());
        {
            auto bringing = reader->bring(held);
            co_await bringing;
        }
        CHECK(is_all(held.at(0), 3));
        CHECK(hub.far->statistics().transfers == 0);
        CHECK(third.far->statistics().transfers == 1);
        held.clear();
        co_await sleep_for(1s);
        CHECK(second.store->usage().objects == 0);
    });
}

TEST_CASE("a gift of a process that has ended is let go of at its home", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        auto& second = w.add(16 * mebi);
        const auto driver = w.join(hub), maker = w.join(second);
        driver->open();
        auto making = make(maker, mebi, 3, driver->self());
        (void)co_await making; // and dies before it says so
        auto leaving = w.leave(maker);
        co_await leaving;
        CHECK(second.store->usage().objects == 1);
        driver->lost(maker->self(), true);
        co_await sleep_for(1s);
        CHECK(second.store->usage().objects == 0);
    });
}

TEST_CASE("who holds a far object and dies lets go of it", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(16 * mebi);
        auto& other = w.add(16 * mebi);
        const auto a = w.join(home), b = w.join(other);
        auto making = make(a, mebi, 3);
        auto mine = co_await making;
        auto claiming = b->claim({mine->name()});
        const auto theirs = co_await claiming;
        mine.reset();
        auto leaving = w.leave(b);
        co_await leaving;
        co_await sleep_for(1s);
        CHECK(home.store->usage().objects == 0);
        CHECK(other.far->statistics().held == 0);
    });
}

TEST_CASE("what comes in pieces goes on after its connections break", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(64 * mebi);
        auto& other = w.add(64 * mebi);
        const auto a = w.join(home), b = w.join(other);
        auto making = make(a, 40 * mebi, 9);
        const auto mine = co_await making;
        auto breaking = [](world* w) -> task<void> {
            for (int i = 0; i < 20; ++i) {
                co_await sleep_for(3ms);
                w->network.reset("n0", "n1");
            }
        };
        scope beside;
        beside.spawn(breaking(&w));
        auto claiming = b->claim({mine->name()});
        const auto theirs = co_await claiming;
        CHECK(is_all(theirs.at(0), 9));
        auto joined = beside.join();
        co_await joined;
    });
}

TEST_CASE("a transfer that nobody wants any more ends", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(64 * mebi);
        auto& other = w.add(64 * mebi);
        const auto a = w.join(home), b = w.join(other);
        auto making = make(a, 40 * mebi, 9);
        auto mine = co_await making;
        b->open();
        co_await sleep_for(1s);
        w.network.partition("n0", "n1");
        auto claiming = as_result(with_timeout(b->claim({mine->name()}), 100ms));
        const auto none = co_await claiming;
        CHECK(!none);
        auto leaving = w.leave(b);
        co_await leaving;
        CHECK(other.far->statistics().held == 0);
        w.network.heal_all();
        mine.reset();
        co_await sleep_for(3s);
        CHECK(home.store->usage().objects == 0);
        CHECK(other.store->usage().objects == 0);
    });
}

TEST_CASE("what has no room on a node is read into memory of the process", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(16 * mebi);
        auto& other = w.add(mebi);
        const auto a = w.join(home), b = w.join(other);
        auto making = make(a, 3 * mebi + 5, 9);
        auto mine = co_await making;
        auto claiming = b->claim({mine->name()});
        auto theirs = co_await claiming;
        CHECK(is_all(theirs.at(0), 9));
        CHECK(other.far->statistics().copies == 0);
        mine.reset();
        co_await sleep_for(1s);
        CHECK(home.store->usage().objects == 1);
        theirs.clear();
        co_await sleep_for(1s);
        CHECK(home.store->usage().objects == 0);
    });
}

TEST_CASE("a node takes its objects along, and copies of them stay", "[objects][far][V11]") {
    for (const bool loudly : {true, false}) {
        world w;
        w.run([loudly](world& w) -> task<void> {
            auto& hub = w.add(16 * mebi);
            auto& lost = w.add(16 * mebi);
            auto& other = w.add(16 * mebi);
            const auto driver = w.join(hub), maker = w.join(lost), reader = w.join(other);
            auto making = make(maker, mebi, 4);
            auto read = co_await making;
            const auto read_name = read->name();
            auto making_too = make(maker, mebi, 6, driver->self());
            (void)co_await making_too;
            auto holding = make(driver, mebi, 8);
            auto of_hub = co_await holding;
            auto claiming_there = maker->claim({of_hub->name()});
            auto at_lost = co_await claiming_there;
            auto claiming = reader->claim({read_name});
            const auto kept = co_await claiming;
            auto held = driver->adopt({{read_name.store, objects::object_number(2), 0, mebi}},
                                      maker->self());
            co_await sleep_for(1s);
            of_hub.reset();
            co_await sleep_for(1s);
            CHECK(hub.store->usage().objects == 1); // the maker's
            read.reset();
            at_lost.clear();

            auto killing = w.kill(lost, loudly);
            co_await killing;
            auto bringing = as_result(driver->bring(held));
            const auto brought = co_await bringing;
            REQUIRE(!brought);
            INFO(brought.error().what());
            CHECK(brought.error().code() == errc::object_lost);
            CHECK(brought.error().text().find("object 2 of 1.0 MiB") != std::string::npos);
            CHECK(is_all(kept.at(0), 4));
            auto again = reader->claim({read_name}); // it is here
            const auto there = co_await again;
            CHECK(is_all(there.at(0), 4));
            co_await sleep_for(60s);
            CHECK(hub.store->usage().objects == 0);
            auto late = as_result(driver->claim({read_name}));
            const auto none = co_await late;
            REQUIRE(!none);
            CHECK(none.error().code() == errc::object_lost);
        });
    }
}

TEST_CASE("a copy that nobody holds serves the next one, unless its room is needed",
          "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(16 * mebi);
        auto& other = w.add(4 * mebi);
        const auto a = w.join(home), b = w.join(other);
        auto making = make(a, 3 * mebi, 5);
        auto mine = co_await making;
        for (int i = 0; i < 3; ++i) {
            auto claiming = b->claim({mine->name()});
            auto theirs = co_await claiming;
            CHECK(is_all(theirs.at(0), 5));
            theirs.clear();
            co_await sleep_for(100ms);
        }
        CHECK(other.far->statistics().transfers == 1);
        CHECK(other.far->statistics().idle == 1);
        auto making_too = make(b, 2 * mebi, 6);
        auto own = co_await making_too;
        CHECK(own);
        CHECK(other.far->statistics().idle == 0);
        own.reset();
        co_await sleep_for(100ms);
        auto again = b->claim({mine->name()});
        auto back = co_await again;
        CHECK(is_all(back.at(0), 5));
        CHECK(other.far->statistics().transfers == 2);
        back.clear();
        const auto name = mine->name();
        mine.reset();
        co_await sleep_for(100ms);
        auto late = as_result(b->claim({name})); // a copy of what is gone is none
        const auto none = co_await late;
        CHECK(!none);
        CHECK(other.far->statistics().idle == 0);
    });
}

TEST_CASE("what was given and taken while stores did not reach each other is not left at its home",
          "[objects][far][V16]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        auto& home = w.add(16 * mebi);
        const auto driver = w.join(hub), maker = w.join(home);
        co_await sleep_for(std::chrono::seconds(1));
        auto making = make(maker, mebi, 5);
        const auto kept = co_await making;
        auto giving = maker->give({kept}, driver->self());
        co_await giving;
        auto making_gift = make(maker, mebi, 6, driver->self());
        const auto given = co_await making_gift;
        CHECK(given == nullptr);
        const objects::object_name gift{
            4712, objects::object_number(kept->name().number.value() + 1), mebi, mebi};
        w.network.partition(hub.host, home.host);
        co_await sleep_for(std::chrono::seconds(30));
        auto held = driver->adopt({kept->name(), gift}, maker->self());
        {
            auto bringing = as_result(driver->bring(held));
            const auto came = co_await bringing;
            REQUIRE_FALSE(came);
            CHECK(came.error().code() == errc::object_lost);
        }
        held.pop_back(); // nobody wants that one
        w.network.heal(hub.host, home.host);
        co_await sleep_for(std::chrono::seconds(30));
        CHECK(home.store->usage().objects == 1);
        {
            auto again = driver->bring(held);
            co_await again;
        }
        CHECK(is_all(held.front(), 5));
        held.clear();
        co_await sleep_for(std::chrono::seconds(1));
        CHECK(hub.far->statistics().held == 0);
        CHECK(home.store->usage().objects == 1); // its maker has it
    });
}

task<void> part_until_met_again(world* w, node* one, node* other) {
    w->network.partition(one->host, other->host);
    co_await sleep_for(30s); // until both know
    w->network.heal(one->host, other->host);
    co_await sleep_for(30s);
}

TEST_CASE("what is held from before stores met again is given away as lost, not as a mistake",
          "[objects][far][V16]") {
    for (const bool has_copy : {true, false}) {
        world w;
        w.run([has_copy](world& w) -> task<void> {
            auto& hub = w.add(16 * mebi);
            auto& home = w.add(16 * mebi);
            const auto driver = w.join(hub), maker = w.join(home);
            const auto other = w.join(hub);
            co_await sleep_for(1s);
            auto making = make(maker, mebi, 5);
            auto kept = co_await making;
            auto giving = maker->give({kept}, driver->self());
            co_await giving;
            auto held = driver->adopt({kept->name()}, maker->self());
            if (has_copy) {
                auto bringing = driver->bring(held);
                co_await bringing;
            }
            co_await sleep_for(1s);
            auto parting = part_until_met_again(&w, &hub, &home);
            co_await parting;
            CHECK(hub.far->peers().linked() == 1);
            {
                auto passing = as_result(driver->give(held, other->self()));
                const auto passed = co_await passing;
                REQUIRE_FALSE(passed);
                INFO(passed.error().what());
                CHECK(passed.error().code() == errc::object_lost);
            }
            if (!has_copy) { // who reads it is counted again
                auto bringing = driver->bring(held);
                co_await bringing;
                auto again = driver->give(held, other->self());
                co_await again;
                auto theirs = other->adopt({kept->name()}, driver->self());
                CHECK(theirs.size() == 1);
            }
            CHECK((!has_copy || is_all(held.front(), 5)));
            held.clear();
            kept.reset();
            co_await sleep_for(1s);
            CHECK(home.store->usage().objects == 0);
        });
    }
}

TEST_CASE("a gift whose home was lost before is not taken back there", "[objects][far][V16]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        auto& home = w.add(16 * mebi);
        const auto driver = w.join(hub), maker = w.join(home);
        const auto other = w.join(hub);
        co_await sleep_for(1s);
        auto making = make(maker, mebi, 5);
        auto kept = co_await making;
        auto giving = maker->give({kept}, driver->self());
        co_await giving;
        auto held = driver->adopt({kept->name()}, maker->self());
        auto right = driver->give(held, other->self()); // and is not taken yet
        co_await right;
        w.network.partition(hub.host, home.host);
        co_await sleep_for(30s);
        for (int i = 0; i < 3; ++i) {
            auto passing = as_result(driver->give(held, other->self()));
            const auto passed = co_await passing;
            REQUIRE_FALSE(passed);
            CHECK(passed.error().code() == errc::object_lost);
        }
        kept.reset();
        held.clear();
        w.network.heal(hub.host, home.host);
        co_await sleep_for(30s);
        CHECK(home.store->usage().objects == 1); // the gift
        auto theirs = other->adopt({{4712, objects::object_number(1), 0, mebi}}, driver->self());
        {
            auto bringing = other->bring(theirs);
            co_await bringing;
        }
        CHECK(is_all(theirs.front(), 5));
        theirs.clear();
        co_await sleep_for(1s);
        CHECK(home.store->usage().objects == 0);
    });
}

TEST_CASE("of gifts that are asked for at once all are given, or none", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        const auto driver = w.join(hub), other = w.join(hub);
        auto making = make(driver, mebi, 5);
        auto first = co_await making;
        auto making_too = make(other, mebi, 6);
        const auto not_its = co_await making_too;
        {
            auto giving = as_result(driver->give({first, not_its}, other->self()));
            const auto given = co_await giving;
            CHECK_FALSE(given);
        }
        first.reset();
        co_await sleep_for(1s);
        CHECK(hub.store->usage().objects == 1);
    });
}

TEST_CASE("a store that others use is kept for a while without that of the driver",
          "[objects][far][V16]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        auto& home = w.add(16 * mebi);
        auto& third = w.add(16 * mebi);
        const auto maker = w.join(home), reader = w.join(third);
        co_await sleep_for(1s);
        auto making = make(maker, mebi, 5);
        auto made = co_await making;
        auto claiming = reader->claim({made->name()});
        auto held = co_await claiming;
        made.reset();
        CHECK(home.far->is_needed());
        w.network.partition(hub.host, home.host);
        while (home.far->peers().has_hub()) co_await sleep_for(500ms);
        co_await sleep_for(2s);
        CHECK(home.far->is_needed());
        w.network.heal(hub.host, home.host);
        co_await sleep_for(30s);
        CHECK(home.far->peers().has_hub());
        CHECK(home.far->is_needed());
        w.network.partition(hub.host, home.host);
        co_await sleep_for(60s); // the driver may be gone for good
        CHECK_FALSE(home.far->is_needed());
        held.clear();
    });
}

TEST_CASE("a transfer goes on when its home is there again in time", "[objects][far][V16]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& hub = w.add(16 * mebi);
        auto& home = w.add(16 * mebi);
        const auto driver = w.join(hub), maker = w.join(home);
        co_await sleep_for(std::chrono::seconds(1));
        auto making = make(maker, 8 * mebi, 7);
        const auto made = co_await making;
        scope healing;
        w.network.partition(hub.host, home.host);
        healing.spawn(heal_after(&w, &hub, &home, std::chrono::milliseconds(8'000)));
        auto claiming = driver->claim({made->name()});
        const auto held = co_await claiming;
        CHECK(is_all(held.front(), 7));
        auto healed = healing.join();
        co_await healed;
    });
}

TEST_CASE("an object that nobody holds any more is not found", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(16 * mebi);
        auto& other = w.add(16 * mebi);
        const auto a = w.join(home), b = w.join(other);
        auto making = make(a, mebi, 1);
        auto mine = co_await making;
        const auto name = mine->name();
        mine.reset();
        co_await sleep_for(1s);
        auto claiming = as_result(b->claim({name}));
        const auto none = co_await claiming;
        REQUIRE(!none);
        CHECK(none.error().code() == errc::not_found);
        CHECK(other.far->statistics().held == 0);
    });
}

TEST_CASE("a store that nobody knows is not waited for for ever", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        auto& home = w.add(16 * mebi);
        const auto a = w.join(home);
        auto claiming = as_result(a->claim({{99, objects::object_number(1), 0, mebi}}));
        const auto none = co_await claiming;
        REQUIRE(!none);
        CHECK(none.error().code() == errc::object_lost);
    });
}

} // namespace far_objects_test

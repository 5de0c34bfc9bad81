// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/doorbell.hpp>

#include <skein/core/error.hpp>

#include <catch2/catch_test_macros.hpp>

#include <thread>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

TEST_CASE("no ring is lost between two threads that wait for each other") {
    doorbell bells[2]{};
    std::atomic<std::uint32_t> turn{0};
    constexpr std::uint32_t rounds = 20000;
    const auto play = [&](std::uint32_t me) {
        spin_budget spin;
        for (std::uint32_t i = 0; i < rounds; ++i) {
            for (int k = 0; k < 20; ++k) spin.slept(1s); // sleep soon: the interesting path
            wait_at(bells[me], spin, 10s, [&] { return turn.load() == 2 * i + me; }, [] {});
            turn.store(2 * i + me + 1);
            bells[1 - me].ring();
        }
    };
    std::thread other([&] { play(1); });
    play(0);
    other.join();
    CHECK(turn.load() == 2 * rounds);
}

TEST_CASE("a waiting thread looks up after each slice") {
    doorbell bell{};
    spin_budget spin;
    int looks = 0;
    CHECK_THROWS_AS(wait_at(
                        bell, spin, 1ms, [] { return false; },
                        [&] {
                            if (++looks == 5) throw error(errc::timeout, "enough");
                        }),
                    error);
    CHECK(looks == 5);
    CHECK(bell.asleep.load() == 0);
}

TEST_CASE("a wait for somebody who needs this core does not look") {
    doorbell bell{};
    spin_budget spin;
    const int rounds = spin.rounds();
    int looks = 0;
    bool there = false;
    wait_at(
        bell, spin, 1us, [&] { return ++looks > 2 && there; }, [&] { there = looks == 2; },
        [] { return false; });
    CHECK(looks <= 3);
    CHECK(spin.rounds() == rounds); // it says nothing about looking
}

TEST_CASE("the spin budget follows what pays off") {
    spin_budget spin;
    for (int i = 0; i < 100; ++i) spin.slept(1s);
    const int least = spin.rounds();
    for (int i = 0; i < 100; ++i) spin.slept(1us);
    CHECK(spin.rounds() > 10 * least);
    for (int i = 0; i < 100; ++i) spin.slept(1s);
    for (int i = 0; i < 100; ++i) spin.paid();
    CHECK(spin.rounds() > 10 * least);
}

TEST_CASE("a budget that shrank is tried again, ever more seldom while that is in vain") {
    spin_budget spin;
    for (int i = 0; i < 100; ++i) spin.slept(1s);
    const auto trials_in = [&](int waits) {
        int trials = 0;
        for (int i = 0; i < waits; ++i) {
            trials += spin.next() > 100 * spin.rounds() ? 1 : 0;
            spin.slept(1s);
        }
        return trials;
    };
    const int first = trials_in(200), later = trials_in(2000);
    CHECK(first >= 2);
    CHECK(later >= 2);
    CHECK(later <= 10);
    const int rounds = spin.rounds();
    spin.paid();
    CHECK(spin.next() > rounds);
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/sim/faults.hpp>

#include <catch2/catch_test_macros.hpp>

#include <set>

using namespace skein;

TEST_CASE("mixes differ from seed to seed, and one in five is calm") {
    int calm = 0, resets = 0, flips = 0;
    std::set<double> rates;
    for (std::uint64_t seed = 1; seed <= 500; ++seed) {
        seeded_random random(seed);
        const auto f = sim::faults::draw(random);
        const bool quiet = f.partial_read == 0 && f.partial_write == 0 && f.reset == 0 &&
                           f.slow_chunk == 0 && f.flip == 0 && f.refuse == 0 &&
                           f.link_fault_every == duration(0);
        calm += quiet;
        resets += f.reset > 0;
        flips += f.flip > 0;
        rates.insert(f.partial_read);
        CHECK(f.window >= 1024);
        CHECK(f.reset <= 0.01);
        CHECK(f.flip <= 0.005);
    }
    CHECK(calm > 70);
    CHECK(calm < 150);
    CHECK(resets > 150);
    CHECK(flips > 150);
    CHECK(rates.size() > 150);
}

TEST_CASE("a mild mix has no resets, no flipped bits and no cut links, and takes as many draws") {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        seeded_random harsh_source(seed), mild_source(seed);
        (void)sim::faults::draw(harsh_source, true);
        const auto mild = sim::faults::draw(mild_source, false);
        CHECK(mild.reset == 0);
        CHECK(mild.flip == 0);
        CHECK(mild.link_fault_every == duration(0));
        CHECK(harsh_source.next() == mild_source.next());
    }
}

TEST_CASE("every kind of fault has a name and a count") {
    sim::fault_counts counts;
    std::set<std::string_view> names;
    for (std::size_t k = 0; k < sim::fault_kinds; ++k) {
        counts.add(static_cast<sim::fault>(k));
        names.insert(to_string(static_cast<sim::fault>(k)));
    }
    CHECK(names.size() == sim::fault_kinds);
    CHECK(counts.total() == sim::fault_kinds);
    CHECK(counts.of(sim::fault::disk_torn) == 1);
}

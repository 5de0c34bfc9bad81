// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/sim/disk.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {
byte_buffer content(disk& d, const std::string& path) {
    auto whole = d.read_whole(path);
    REQUIRE(whole);
    return std::move(*whole);
}
} // namespace

TEST_CASE("a simulated disk stores, lists, renames and removes") {
    seeded_random random(1);
    sim::disk d(random);
    REQUIRE(d.make_dirs("run/a"));
    REQUIRE(d.write_whole("run/a/x", to_buffer("one")));
    REQUIRE(d.write_whole("run/a//y", to_buffer("two")));
    CHECK(content(d, "run/a/x") == to_buffer("one"));
    const auto names = d.list("run/a");
    REQUIRE(names);
    REQUIRE(names->size() == 2);
    CHECK((*names)[0].name == "x");
    CHECK((*names)[1].bytes == 3);
    REQUIRE(d.rename("run/a/x", "run/a/y"));
    CHECK(content(d, "run/a/y") == to_buffer("one"));
    CHECK(d.status("run/a/x").error().code() == errc::not_found);
    REQUIRE(d.rename("run/a", "run/b"));
    CHECK(content(d, "run/b/y") == to_buffer("one"));
    CHECK_FALSE(d.status("run/a"));
    CHECK_FALSE(d.remove("run/b"));
    REQUIRE(d.remove("run/b/y"));
    REQUIRE(d.remove("run/b"));
    CHECK(d.open("nowhere/x", open_mode::write).error().code() == errc::not_found);
    CHECK(d.open("x", open_mode::read).error().code() == errc::not_found);
    REQUIRE(d.write_whole("x", {}));
    CHECK(d.open("x", open_mode::create_new).error().code() == errc::already_exists);
}

TEST_CASE("replace leaves the old or the new content after a crash, for every fate of the writes") {
    int olds = 0, news = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
        seeded_random random(seed);
        sim::disk d(random);
        REQUIRE(d.make_dirs("run"));
        REQUIRE(d.replace("run/m", to_buffer("old content")));
        REQUIRE(d.sync_dir("."));
        // The steps of replace, cut off somewhere.
        const std::uint64_t stop = seed % 4;
        auto f = d.open("run/m.tmp", open_mode::write);
        REQUIRE(f);
        REQUIRE((*f)->write_at(0, to_buffer("new content!")));
        if (stop >= 1) REQUIRE((*f)->sync());
        if (stop >= 2) REQUIRE(d.rename("run/m.tmp", "run/m"));
        if (stop >= 3) REQUIRE(d.sync_dir("run"));
        d.crash();
        CHECK((*f)->sync().error().code() == errc::closed);
        const auto after = content(d, "run/m");
        const bool is_new = after == to_buffer("new content!");
        CHECK((is_new || after == to_buffer("old content")));
        if (stop == 3) CHECK(is_new);
        (is_new ? news : olds) += 1;
    }
    CHECK(olds > 50);
    CHECK(news > 50);
}

TEST_CASE("a rename without a sync of the content may show torn bytes: the mistake is found") {
    int broken = 0;
    sim::fault_counts counts;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        seeded_random random(seed);
        sim::disk d(random, {}, &counts);
        REQUIRE(d.replace("m", to_buffer("old")));
        auto f = d.open("m.tmp", open_mode::write);
        REQUIRE((*f)->write_at(0, to_buffer("new content")));
        REQUIRE(d.rename("m.tmp", "m"));
        REQUIRE(d.sync_dir("."));
        d.crash();
        const auto after = content(d, "m");
        if (after != to_buffer("old") && after != to_buffer("new content")) ++broken;
    }
    CHECK(broken > 20);
    CHECK(counts.of(sim::fault::disk_lost) > 0);
    CHECK(counts.of(sim::fault::disk_torn) > 0);
}

TEST_CASE("a full disk says so and keeps what was there") {
    seeded_random random(1);
    sim::disk_options o;
    o.capacity = 10;
    sim::fault_counts counts;
    sim::disk d(random, o, &counts);
    REQUIRE(d.write_whole("a", to_buffer("12345")));
    const auto full = d.write_whole("b", to_buffer("123456"));
    REQUIRE_FALSE(full);
    CHECK(full.error().code() == errc::disk_full);
    CHECK(content(d, "a") == to_buffer("12345"));
    CHECK(d.free_space(".").value() == 0);
    CHECK(counts.of(sim::fault::disk_full) == 1);
}

TEST_CASE("errors come at the rate asked for, the same for the same seed") {
    const auto run = [](std::uint64_t seed) {
        seeded_random random(seed);
        sim::disk_options o;
        o.io_error = 0.2;
        sim::disk d(random, o);
        std::string trace;
        for (int i = 0; i < 200; ++i) trace += d.write_whole("f", to_buffer("x")) ? '.' : 'E';
        return trace;
    };
    CHECK(run(4) == run(4));
    CHECK(run(4) != run(5));
    const auto trace = run(4);
    CHECK(std::count(trace.begin(), trace.end(), 'E') > 40);
    CHECK(std::count(trace.begin(), trace.end(), 'E') < 140);
}

TEST_CASE("a bit can be flipped at rest") {
    seeded_random random(1);
    sim::disk d(random);
    REQUIRE(d.write_whole("f", to_buffer("a")));
    CHECK(d.flip_bit("f", 0));
    CHECK(content(d, "f") == to_buffer("`"));
    CHECK_FALSE(d.flip_bit("f", 8));
}

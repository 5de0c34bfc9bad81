// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include "support/disk_laws.hpp"
#include "support/temporary_folder.hpp"

#include <skein/core/posix_disk.hpp>
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

TEST_CASE("the real disk and the simulated one keep the same laws") {
    const test::temporary_folder folder;
    posix_disk real;
    test::disk_laws(real, folder.path);
    sim::disk simulated;
    REQUIRE(simulated.make_dirs("a/folder"));
    test::disk_laws(simulated, "a/folder");
    // The laws hold in a world that has come back from a crash, too.
    auto after = simulated.crash(sim::crash_mode::all_written);
    REQUIRE(after->remove_tree("a/folder"));
    REQUIRE(after->make_dirs("a/folder"));
    test::disk_laws(*after, "a/folder");
}

TEST_CASE("a crash can be looked at from three sides, and changes nothing here") {
    sim::disk d;
    REQUIRE(d.make_dirs("run"));
    REQUIRE(d.sync_dir("."));
    REQUIRE(d.replace("run/m", to_buffer("old")));
    auto f = d.open("run/m", open_mode::write);
    REQUIRE((*f)->append(to_buffer("new content")));
    REQUIRE(d.write_whole("run/other", to_buffer("x"))); // synced, its name is not
    const auto all = d.crash(sim::crash_mode::all_written);
    CHECK(content(*all, "run/m") == to_buffer("new content"));
    CHECK(content(*all, "run/other") == to_buffer("x"));
    const auto least = d.crash(sim::crash_mode::only_synced);
    CHECK(content(*least, "run/m") == to_buffer("old"));
    CHECK_FALSE(least->status("run/other"));
    bool torn = false, lost = false;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        const auto some = d.crash(sim::crash_mode::mixed, seed);
        const auto m = content(*some, "run/m");
        torn = torn || (m != to_buffer("old") && m != to_buffer("new content") && !m.empty());
        lost = lost || !some->status("run/other");
    }
    CHECK(torn);
    CHECK(lost);
    CHECK(content(d, "run/m") == to_buffer("new content"));
    CHECK((*f)->sync());
}

TEST_CASE("what was not durable in a folder is not made so by moving the folder") {
    sim::disk d;
    REQUIRE(d.make_dirs("draft"));
    REQUIRE(d.sync_dir("."));
    REQUIRE(d.write_whole("draft/kept", to_buffer("1")));
    REQUIRE(d.sync_dir("draft"));
    REQUIRE(d.write_whole("draft/lost", to_buffer("2")));
    REQUIRE(d.rename("draft", "final"));
    REQUIRE(d.sync_dir("."));
    const auto after = d.crash(sim::crash_mode::only_synced);
    CHECK(content(*after, "final/kept") == to_buffer("1"));
    CHECK_FALSE(after->status("final/lost"));
    CHECK_FALSE(after->status("draft"));
    REQUIRE(d.sync_dir("final"));
    CHECK(d.crash(sim::crash_mode::only_synced)->status("final/lost"));
}

TEST_CASE("the power goes at a chosen change, and one change can fail") {
    sim::disk d;
    REQUIRE(d.write_whole("f", to_buffer("1"))); // create, write, sync
    CHECK(d.changes() == 3);
    d.fail_once(1, errc::disk_full);
    const auto failed = d.write_whole("f", to_buffer("2"));
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code() == errc::disk_full);
    CHECK(d.write_whole("f", to_buffer("3")));
    d.power_off_after(2);
    CHECK_FALSE(d.write_whole("f", to_buffer("4")));
    CHECK_FALSE(d.make_dirs("x"));
    CHECK(content(d, "f") == to_buffer("4")); // still in the caches
    d.power_on();
    CHECK(d.make_dirs("x"));
}

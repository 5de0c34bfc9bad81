// SPDX-License-Identifier: Apache-2.0
#include "cluster/results_support.hpp"

#include <skein/cluster/run_shelf.hpp>
#include <tests/support/temporary_folder.hpp>

#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace run_shelf_test {

using namespace results_support;

TEST_CASE("a set is seen when all of its files are there, and after a new start",
          "[cluster][results]") {
    const test::temporary_folder folder;
    std::string id;
    {
        run_shelf on(folder.path + "/results", 1 << 20);
        const auto files = one_file("a", "text");
        const auto pin = on.files().pin(files);
        CHECK(fault_of([&] { on.commit("job-1", set_of("attempt-1", pin.id()), true); }) ==
              errc::not_found);
        CHECK(on.sets_of("job-1").empty());
        CHECK(fault_of([&] { on.commit("job-1", set_of("x", std::string(64, 'a')), true); }) ==
              errc::not_found);
        id = keep(on, "job-1", "attempt-1", "text", true);
        CHECK(on.has_set("job-1", id));
        CHECK_FALSE(on.has_set("job-2", id));
        CHECK(on.digest_of(id, 0) == files.entries[0].digest);
        CHECK(fault_of([&] { (void)on.digest_of(id, 1); }) == errc::not_found);
    }
    run_shelf again(folder.path + "/results", 1 << 20);
    const auto sets = again.sets_of("job-1");
    REQUIRE(sets.size() == 1);
    CHECK(sets[0].id == id);
    CHECK(sets[0].files == 1);
    CHECK(sets[0].bytes == 4);
    again.forget("job-1");
    CHECK(again.sets_of("job-1").empty());
    CHECK(fs::is_empty(folder.path + "/results/sets"));
}

TEST_CASE("a set of the same name takes the place of the one before, and the oldest of many go",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 1 << 20);
    (void)keep(on, "job", "same", "one", true);
    const auto id = keep(on, "job", "same", "two", true);
    REQUIRE(on.sets_of("job").size() == 1);
    CHECK(on.sets_of("job")[0].id == id);
    for (std::size_t i = 0; i < run_shelf::most_sets; ++i) {
        auto none = set_of("n" + std::to_string(i), "");
        none.trouble = "no room";
        on.commit("job", none, false);
    }
    CHECK(on.sets_of("job").size() == run_shelf::most_sets);
    CHECK(on.sets_of("job").front().name == "n0");
    on.drop("job", "n0");
    CHECK(on.sets_of("job").front().name == "n1");
}

TEST_CASE("what is held stays; what is not goes for others, and its set says so",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 5000);
    const std::string large(2000, 'x');
    (void)keep(on, "held", "a", large + "1", true);
    (void)keep(on, "free", "a", large + "2", false);
    CHECK(on.sets_of("held")[0].trouble.empty());
    (void)keep(on, "new", "a", large + "3", true);
    CHECK(on.sets_of("free")[0].id.empty());
    CHECK(on.sets_of("free")[0].trouble == set_is_gone);
    CHECK_FALSE(on.sets_of("held")[0].id.empty());
    CHECK(fault_of([&] { (void)keep(on, "more", "a", large + "4", true); }) == errc::exhausted);
    on.keep([](const std::string& key) { return key == "new"; },
            [](const std::string& key) { return key != "free"; });
    CHECK(on.sets_of("free").empty());
    (void)keep(on, "more", "a", large + "4", true);
    CHECK(on.sets_of("held")[0].id.empty());
    CHECK_FALSE(on.sets_of("new")[0].id.empty());
}

TEST_CASE("pages of a shelf that are damaged count as none", "[cluster][results]") {
    const test::temporary_folder folder;
    {
        run_shelf on(folder.path + "/results", 1 << 20);
        (void)keep(on, "a", "one", "1", false);
        (void)keep(on, "b", "one", "2", false);
    }
    const auto page = folder.path + "/results/sets/a";
    fs::resize_file(page, fs::file_size(page) / 2);
    write_file(folder.path + "/results/sets/c", std::string(2'000'000, 'x'));
    run_shelf again(folder.path + "/results", 1 << 20);
    CHECK(again.sets_of("a").empty());
    CHECK(again.sets_of("c").empty());
    CHECK(again.sets_of("b").size() == 1);
}

TEST_CASE("after a new start what jobs that live have is held again", "[cluster][results]") {
    const test::temporary_folder folder;
    const std::string large(2000, 'x');
    {
        run_shelf on(folder.path + "/results", 10'000);
        (void)keep(on, "lives", "attempt-1", large + "1", true);
        (void)keep(on, "lives", "run/step-1", large + "2", true);
        (void)keep(on, "lives", "attempt-2", large + "3", true);
    }
    run_shelf on(folder.path + "/results", 10'000);
    on.keep([](const std::string&) { return true; }, [](const std::string&) { return true; });
    (void)keep(on, "other", "a", large + "4", true);
    (void)keep(on, "third", "a", large + "5", true);
    CHECK(fault_of([&] { (void)keep(on, "fourth", "a", large + "6", true); }) == errc::exhausted);
    const auto sets = on.sets_of("lives");
    REQUIRE(sets.size() == 3);
    CHECK(sets[0].id.empty()); // an attempt before the newest
    CHECK_FALSE(sets[1].id.empty());
    CHECK_FALSE(sets[2].id.empty());
}

TEST_CASE("of a run's steps those are kept that its node has, and the two newest",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 1 << 20);
    for (const char* name :
         {"a/step-1", "b/step-1", "attempt-1", "a/step-2", "a/step-3", "a/step-4"})
        (void)keep(on, "job", name, name, true);
    on.keep_steps("job", "a/", {"a/step-1", "a/step-4"});
    std::vector<std::string> names;
    for (const auto& one : on.sets_of("job")) names.push_back(one.name);
    CHECK(names ==
          std::vector<std::string>{"a/step-1", "b/step-1", "attempt-1", "a/step-3", "a/step-4"});
    on.keep_steps("nobody", "a/", {});
}

TEST_CASE("what is held does not go for the number of sets; when all is held a set is refused",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 1 << 20);
    const auto name_of = [](std::size_t i) { return "r" + std::to_string(i) + "/step-1"; };
    for (std::size_t i = 0; i + 1 < run_shelf::most_sets; ++i)
        (void)keep(on, "job", name_of(i), name_of(i), true);
    (void)keep(on, "job", "attempt-1", "1", true);
    (void)keep(on, "job", "attempt-2", "2", true); // the one before it gives way
    CHECK(on.sets_of("job").size() == run_shelf::most_sets);
    CHECK(on.sets_of("job").front().name == name_of(0));
    CHECK(fault_of([&] { (void)keep(on, "job", "more/step-1", "more", true); }) == errc::exhausted);
    (void)keep(on, "job", name_of(0), "again", true);
    CHECK(on.sets_of("job").front().name == name_of(1));
    CHECK(on.sets_of("job").size() == run_shelf::most_sets);
}

TEST_CASE("after a new start the first commit holds what was held, too", "[cluster][results]") {
    const test::temporary_folder folder;
    const std::string large(2000, 'x');
    {
        run_shelf on(folder.path + "/results", 7000);
        (void)keep(on, "lives", "run/step-1", large + "1", true);
    }
    run_shelf on(folder.path + "/results", 7000);
    (void)keep(on, "lives", "run/step-2", large + "2", true);
    (void)keep(on, "other", "a", large + "3", true);
    CHECK(fault_of([&] { (void)keep(on, "third", "a", large + "4", true); }) == errc::exhausted);
    CHECK_FALSE(on.sets_of("lives")[0].id.empty());
}

TEST_CASE("a job that came after the list of jobs was made is not forgotten by it",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 1 << 20);
    const auto nobody = [](const std::string&) { return false; };
    (void)keep(on, "old", "attempt-1", "1", true);
    const auto as_of = run_shelf::now();
    (void)keep(on, "new", "attempt-1", "2", true);
    on.keep(nobody, nobody, as_of);
    CHECK(on.sets_of("old").empty());
    CHECK(on.sets_of("new").size() == 1);
    on.keep(nobody, nobody, run_shelf::now());
    CHECK(on.sets_of("new").empty());
}

} // namespace run_shelf_test

// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/sim/children.hpp>
#include <skein/spmd/rank_output.hpp>
#include <tests/support/temporary_folder.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein;

namespace {

std::string text_of(const std::string& path) {
    std::ifstream from(path);
    return {std::istreambuf_iterator<char>(from), {}};
}

struct small_world {
    small_world() {
        here.add("rank", [](sim::process* self) -> task<int> {
            auto one = self->print(false, "one\ntwo");
            co_await one;
            auto two = self->print(true, "three\n");
            co_await two;
            co_return 0;
        });
    }
    sim::loop loop{1};
    sim::network net{loop, sim::faults{}};
    sim::children here{net, "a"};
};

task<void> keep(small_world* w, spmd::rank_output_options how) {
    spmd::rank_output written(std::move(how));
    for (int rank = 0; rank < 2; ++rank) {
        proc::child_options what;
        what.role = "rank";
        what.reads_output = true;
        auto starting = w->here.start(std::move(what));
        written.take(3, rank, rank, co_await starting);
    }
    auto ending = written.end();
    co_await ending;
}

spmd::rank_output_options into(const std::string& folder) {
    spmd::rank_output_options how;
    how.folder = folder;
    how.redirect = [](int) { return spmd::rank_output_options::all; };
    return how;
}

} // namespace

TEST_CASE("each output of each rank has a file of its own") {
    const test::temporary_folder folder;
    const auto how = into(folder.path + "/logs/j");
    small_world w;
    w.loop.run(keep(&w, how));
    for (int rank = 0; rank < 2; ++rank) {
        CHECK(text_of(how.file(3, rank, false)) == "one\ntwo");
        CHECK(text_of(how.file(3, rank, true)) == "three\n");
    }
    CHECK(how.file(3, 1, true) == folder.path + "/logs/j/attempt_3/1/stderr.log");
}

TEST_CASE("what is in a file alone is not shown, the rest is") {
    auto how = into("logs");
    CHECK(how.has_file(0, false));
    CHECK_FALSE(how.is_shown(0, false));
    how.redirect = {};
    how.tee = [](int rank) { return rank == 1 ? spmd::rank_output_options::standard_error : 0; };
    CHECK_FALSE(how.has_file(1, false));
    CHECK(how.has_file(1, true));
    CHECK_FALSE(how.has_file(0, true));
    for (const int rank : {0, 1})
        for (const bool is_error : {false, true}) CHECK(how.is_shown(rank, is_error));
}

TEST_CASE("ranks that are not to be shown print to files, or nowhere") {
    spmd::rank_output_options how;
    how.shown = [](int rank) { return rank == 1; };
    CHECK(how.is_asked());
    CHECK_FALSE(how.writes_files());
    CHECK_FALSE(how.is_shown(0, false));
    CHECK(how.is_shown(1, true));
    how.tee = [](int) { return spmd::rank_output_options::standard_output; };
    CHECK(how.has_file(0, false));
    CHECK_FALSE(how.is_shown(0, false));
    CHECK(how.is_shown(1, false));
}

TEST_CASE("a folder that cannot be made is said before anything starts") {
    const test::temporary_folder folder;
    std::ofstream(folder.path + "/file") << "taken";
    CHECK_THROWS_WITH(spmd::rank_output(into(folder.path + "/file/j")),
                      Catch::Matchers::ContainsSubstring("make log folder"));
}

TEST_CASE("the first file that cannot be written is said, and how many there were; ranks go on") {
    const test::temporary_folder folder;
    auto how = into(folder.path);
    std::vector<std::string> said;
    how.say = [&said](const std::string& line) { said.push_back(line); };
    for (const int rank : {0, 1})
        std::filesystem::create_directories(how.file(3, rank, false)); // a folder in its place
    small_world w;
    w.loop.run(keep(&w, how));
    REQUIRE(said.size() == 2);
    CHECK_THAT(said[0], Catch::Matchers::ContainsSubstring("what rank 0 prints"));
    CHECK(said[1] == "2 files of what ranks have printed end too early");
    CHECK(text_of(how.file(3, 1, true)) == "three\n");
}

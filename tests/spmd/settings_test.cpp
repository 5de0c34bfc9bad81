// SPDX-License-Identifier: Apache-2.0
#include <skein/spmd/settings.hpp>
#include <skein/wire/encode.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace skein::spmd;
using Catch::Matchers::ContainsSubstring;

namespace {

using list = std::vector<spmd::setting>;

/// A world where every other rank's blob is known.
class scripted final : public spmd::rendezvous {
public:
    scripted(int rank, std::vector<list> all) : rank_(rank), all_(std::move(all)) {}
    int rank() const override { return rank_; }
    int world_size() const override { return static_cast<int>(all_.size()); }
    int local_rank() const override { return 0; }
    int local_size() const override { return 1; }
    int generation() const override { return 0; }
    std::string host() const override { return "here"; }
    std::vector<byte_buffer> exchange(std::string_view, byte_span mine) override {
        std::vector<byte_buffer> blobs;
        for (const auto& each : all_) blobs.push_back(wire::encode(each));
        blobs[static_cast<std::size_t>(rank_)] = to_buffer(mine);
        return blobs;
    }
    net::token secret() const override { return {}; }
    spmd::subscription on_lost(loss_listeners::listener) override { return {}; }

private:
    int rank_;
    std::vector<list> all_;
};

} // namespace

TEST_CASE("the hash tells names, values and where one ends and the next begins") {
    const list one{{"seed", "1"}, {"lr", "0.1"}};
    CHECK(hash_of(one) == hash_of(list{{"seed", "1"}, {"lr", "0.1"}}));
    for (const auto& other :
         {list{{"seed", "1"}, {"lr", "0.2"}}, list{{"seed", "1"}},
          list{{"lr", "0.1"}, {"seed", "1"}}, list{{"seed", "1l"}, {"r", "0.1"}}, list{}}) {
        CHECK(hash_of(other) != hash_of(one));
    }
}

TEST_CASE("a difference names the setting, both ranks and both values, and only what differs") {
    const auto why =
        spmd::difference(3, {{"seed", "1"}, {"lr", "0.1"}}, 0, {{"seed", "1"}, {"lr", "0.2"}});
    REQUIRE(why);
    CHECK(why->code() == errc::mismatch);
    CHECK(why->text() == "the ranks' settings differ: rank 3 has lr 0.1, rank 0 has 0.2");
    CHECK_FALSE(spmd::difference(3, {{"lr", "1"}}, 0, {{"lr", "1"}}));
}

TEST_CASE("a setting that one rank does not have is named, and a long list is cut") {
    CHECK_THAT(spmd::difference(1, {}, 0, {{"lr", "1"}})->what(),
               ContainsSubstring("rank 1 has lr not at all, rank 0 has 1"));
    CHECK_THAT(spmd::difference(1, {{"lr", "1"}}, 0, {})->what(),
               ContainsSubstring("rank 1 has lr 1, rank 0 has none"));
    list many;
    for (int i = 0; i < 9; ++i) many.push_back({std::to_string(i), "x"});
    CHECK_THAT(difference(1, {}, 0, many)->what(), ContainsSubstring("and 5 more"));
}

TEST_CASE("who is measured by all others is told so, and another build is one to be mended") {
    CHECK_THAT(spmd::difference(4, {{"lr", "1"}}, -1, {{"lr", "2"}})->what(),
               ContainsSubstring("rank 4 has lr 1, the others have 2"));
    const auto mine = build_setting();
    CHECK(mine == build_setting());
    const list ours{{"lr", "1"}, mine}, theirs{{"lr", "1"}, {mine.name, "00ff"}};
    const auto why = spmd::difference(1, theirs, 0, ours);
    REQUIRE(why);
    CHECK(why->text() ==
          "the ranks' settings differ: rank 1 has build 00ff, rank 0 has " + mine.value);
    CHECK_THAT(why->hint(), ContainsSubstring("the same file of the program on every host"));
    CHECK_THAT(spmd::difference(1, {{"lr", "2"}, theirs[1]}, 0, ours)->hint(),
               ContainsSubstring("with the same options"));
}

TEST_CASE("all ranks get the same answer about the first that differs") {
    const list good{{"batch", "16"}}, odd{{"batch", "8"}};
    for (const int rank : {0, 1, 2}) {
        scripted world(rank, {good, good, odd});
        try {
            require_same(world, "k", rank == 2 ? odd : good);
            FAIL("no error");
        } catch (const error& e) {
            CHECK_THAT(e.what(), ContainsSubstring("rank 2 has batch 8, rank 0 has 16"));
        }
    }
    scripted alike(1, {good, good});
    require_same(alike, "k", good);
}

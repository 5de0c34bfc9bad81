// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/spmd/host_share.hpp>

#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("hosts have their ranks one after the other") {
    const std::vector<spmd::host_offer> offers{
        {"a", "m1", "", 2, 11}, {"b", "m2", "j", 1, 22}, {"c", "m3", "k", 3, 33}};
    const auto first = spmd::share_of(offers, 0), second = spmd::share_of(offers, 1),
               third = spmd::share_of(offers, 2);
    CHECK(first.first_rank == 0);
    CHECK(second.first_rank == 2);
    CHECK(third.first_rank == 3);
    CHECK(third.ranks == 3);
    CHECK(third.place == 2);
    for (const auto& one : {first, second, third}) {
        CHECK(one.hosts == 3);
        CHECK(one.world_size == 6);
        CHECK(one.master_host == "a");
        CHECK(one.master_port == 11);
        CHECK(one.job == "j");
    }
    CHECK(second.host == "b");
    CHECK(spmd::text_of(offers) == "a has ranks 0 to 1, b has rank 2, c has ranks 3 to 5");
}

TEST_CASE("two machines under one name are refused, two supervisors of one machine are not") {
    CHECK(spmd::share_of({{"a", "m1", "", 1, 1}, {"a", "m1", "", 1, 2}}, 1).first_rank == 1);
    CHECK_THROWS_MATCHES(spmd::share_of({{"a", "m1", "", 1, 1}, {"a", "m2", "", 1, 2}}, 0), error,
                         MessageMatches(ContainsSubstring("two hosts of the job are called a") &&
                                        ContainsSubstring("--local-addr")));
}

TEST_CASE("a host without ranks is none") {
    CHECK_THROWS_AS(spmd::share_of({{"a", "m1", "", 0, 1}}, 0), error);
    CHECK_THROWS_AS(spmd::share_of({{"a", "m1", "", 4097, 1}}, 0), error);
}

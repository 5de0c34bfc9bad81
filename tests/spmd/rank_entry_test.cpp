// SPDX-License-Identifier: Apache-2.0
// The list of entries; ranks that enter one are tested by tests/programs/run_result_test.py.
#include <skein/core/error.hpp>
#include <skein/spmd/rank_entry.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace skein;

namespace {
int live(spmd::rank_entry&) { return 0; }
} // namespace

TEST_CASE("an entry is found by its name, and a name that two functions share is refused") {
    static spmd::rank_entry one{"one", &live}, twin{"twin", &live}, other{"twin", &live};
    for (auto* entry : {&one, &twin, &other}) spmd::add_entry(*entry);
    CHECK(spmd::find_entry("one").value() == &one);
    const auto shared = spmd::find_entry("twin");
    REQUIRE_FALSE(shared);
    CHECK(shared.error().code() == errc::already_exists);
    CHECK(shared.error().hint().find("another name") != std::string::npos);
    const auto none = spmd::find_entry("nobody");
    REQUIRE_FALSE(none);
    CHECK(none.error().code() == errc::not_found);
}

TEST_CASE("a process that nobody has started as a rank of an entry goes on") {
    CHECK_FALSE(spmd::is_for_entry());
    spmd::enter_if_rank(); // and comes back
    SUCCEED();
}

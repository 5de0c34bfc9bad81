// SPDX-License-Identifier: Apache-2.0
#include <skein/core/option_count.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstddef>
#include <cstdint>

using namespace skein;

namespace {

struct options {
    option_count most = 16, least = 1;
};

} // namespace

TEST_CASE("a count in braces takes what a program has: an int, a size, a number of a flag") {
    volatile int typed = 4; // not a constant: with a std::size_t it would be a narrowing
    const std::size_t size = 5;
    const std::uint64_t many = 6;
    const std::int64_t flag = 7;
    CHECK(options{.most = static_cast<int>(typed)}.most == 4U);
    CHECK(options{.most = size}.most + 1 == 6U);
    CHECK(options{.most = many, .least = flag}.least > options{.most = many}.most);
    CHECK(options{}.most == 16U);
    static_assert(option_count(3) * 2 == 6);
    static_assert(!std::is_constructible_v<option_count, bool> &&
                  !std::is_constructible_v<option_count, double>);
}

TEST_CASE("a negative count is refused with its value") {
    volatile int typed = 4;
    try {
        (void)options{.most = typed - 5};
        FAIL("it was taken");
    } catch (const error& why) {
        CHECK(why.code() == errc::usage);
        CHECK_THAT(why.what(), Catch::Matchers::ContainsSubstring("a count of -1"));
    }
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/core/result.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

using skein::errc;
using skein::error;
using skein::result;

TEST_CASE("a result is a value or an error") {
    result<int> good = 5;
    REQUIRE(good);
    CHECK(*good == 5);
    CHECK(good.value() == 5);
    const result<int> bad = error(errc::not_found, "no file");
    CHECK_FALSE(bad);
    CHECK(bad.error().code() == errc::not_found);
    CHECK_THROWS_AS(bad.value(), error);
}

TEST_CASE("a result may hold what can only be moved") {
    result<std::unique_ptr<int>> owner = std::make_unique<int>(3);
    const std::unique_ptr<int> taken = std::move(owner).value();
    CHECK(*taken == 3);
    result<std::string> text = "converted";
    CHECK(text->size() == 9);
}

TEST_CASE("a result of nothing is success or an error") {
    const result<void> good;
    CHECK(good);
    CHECK_NOTHROW(good.value());
    const result<void> bad = error(errc::io, "disk");
    CHECK_FALSE(bad);
    CHECK_THROWS_AS(bad.value(), error);
}

TEST_CASE("a result can become another one, and what it held ends once") {
    const auto shared = std::make_shared<int>(1);
    {
        result<std::shared_ptr<int>> a = shared, b = error(errc::io, "disk");
        const result<std::shared_ptr<int>> copy = a;
        CHECK(shared.use_count() == 3);
        CHECK(*copy == shared);
        b = a; // an error becomes a value
        CHECK(shared.use_count() == 4);
        a = error(errc::closed, "gone"); // and a value an error
        CHECK(shared.use_count() == 3);
        CHECK(a.error().code() == errc::closed);
        const auto moved = std::move(b);
        CHECK(shared.use_count() == 3);
        REQUIRE(moved);
        const auto failed = std::move(a);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().text() == "gone");
        result<std::shared_ptr<int>> self = shared;
        const auto& same = self;
        self = same;
        CHECK(*self == shared);
    }
    CHECK(shared.use_count() == 1);
    static_assert(!std::is_copy_constructible_v<result<std::unique_ptr<int>>>);
    static_assert(std::is_nothrow_move_constructible_v<result<std::string>>);
}

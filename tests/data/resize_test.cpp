// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/resize.hpp>

#include <catch2/catch_test_macros.hpp>
#include <tests/data/oracle.hpp>

using namespace skein;
using skein_test::difference;
using skein_test::oracle;

TEST_CASE("resizing gives Pillow's values, smaller and larger") {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto pixels = oracle().at("pixels").picture<std::uint8_t, 3>();
    for (const auto& [height, width] :
         {std::pair{20, 31}, {96, 100}, {48, 17}, {11, 64}, {48, 64}, {1, 1}})
        CHECK(difference(data::resize(pixels, height, width).values(),
                         oracle().at("resize/" + std::to_string(height) + "x" +
                                     std::to_string(width))) == 0);
    CHECK(difference(data::resize_short_side(pixels, 33).values(), oracle().at("short_side")) == 0);
    const auto part = data::detail::resized_part(pixels, {5, 7, 30, 41}, 22, 24);
    CHECK(difference(part.values(), oracle().at("resized_crop")) == 0);
    CHECK_THROWS_AS(data::resize(pixels, 0, 5), error);
}

TEST_CASE("random crops have an area and a ratio in the ranges") {
    for (std::uint64_t sample = 0; sample < 300; ++sample) {
        data::draws random(1, 0, sample, 0);
        const auto box = data::detail::random_box(375, 500, random, {0.2f, 0.9f}, {0.75f, 1.33f});
        REQUIRE((box.top >= 0 && box.top + box.height <= 375));
        REQUIRE((box.left >= 0 && box.left + box.width <= 500));
        const double area = double(box.height) * box.width / (375 * 500);
        REQUIRE((area > 0.19 && area < 0.91));
        const double ratio = double(box.width) / box.height;
        REQUIRE((ratio > 0.74 && ratio < 1.35));
    }
    data::draws random(1, 0, 0, 0);
    const auto box = data::detail::random_box(10, 1000, random, {1, 1}, {0.5f, 2.0f});
    CHECK(box.height == 10); // none fits: the middle
    CHECK(box.width == 20);
    CHECK(box.left == 490);
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/pixels.hpp>

#include <algorithm>

#include <catch2/catch_test_macros.hpp>
#include <tests/data/oracle.hpp>

using namespace skein;
using skein_test::difference;
using skein_test::oracle;

TEST_CASE("bytes become floats, and are normalized, as torchvision does it") {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto pixels = oracle().at("pixels").picture<std::uint8_t, 3>();
    const auto made = data::to_float(pixels);
    CHECK(difference(made.values(), oracle().at("to_float")) == 0);
    const data::per_channel<3> mean{0.485f, 0.456f, 0.406f}, deviation{0.229f, 0.224f, 0.225f};
    const auto two = data::normalize(made, mean, deviation);
    const auto one = data::to_float_normalized(pixels, mean, deviation);
    CHECK(difference(two.values(), oracle().at("normalize")) < 1e-6);
    CHECK(std::ranges::equal(one.values(), two.values()));
    CHECK_THROWS_AS(data::normalize(made, mean, {1, 0, 1}), error);
}

TEST_CASE("a flip changes left and right over, of bytes and of floats") {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto pixels = oracle().at("pixels").picture<std::uint8_t, 3>();
    const auto flipped = data::flip_horizontal(pixels);
    CHECK(flipped.data[0] == pixels.data[63 * 3]);
    CHECK(flipped.data[2] == pixels.data[63 * 3 + 2]);
    CHECK(std::ranges::equal(data::to_float(flipped).values(),
                             data::flip_horizontal(data::to_float(pixels)).values()));
    CHECK(std::ranges::equal(data::flip_horizontal(flipped).values(), pixels.values()));
}

TEST_CASE("crops take the part that they name, and the middle as torchvision has it") {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto pixels = oracle().at("pixels").picture<std::uint8_t, 3>();
    const auto part = data::crop(pixels, 5, 7, 30, 41);
    CHECK(part.data[0] == pixels.data[(5 * 64 + 7) * 3]);
    CHECK(std::ranges::equal(data::to_float(part).values(),
                             data::crop(data::to_float(pixels), 5, 7, 30, 41).values()));
    CHECK_THROWS_AS(data::crop(pixels, 20, 0, 30, 10), error);
    CHECK_THROWS_AS(data::crop(pixels, -1, 0, 30, 10), error);
    for (const auto& [height, width] : {std::pair{21, 33}, {60, 40}, {60, 77}})
        CHECK(difference(data::center_crop(pixels, height, width).values(),
                         oracle().at("center/" + std::to_string(height) + "x" +
                                     std::to_string(width))) == 0);
}

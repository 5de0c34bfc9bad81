// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/encode.hpp>

#include <catch2/catch_test_macros.hpp>

#include "messages.hpp"

namespace wire = skein::wire;
using namespace wire_test;

TEST_CASE("numbers are little endian and lengths take one byte below 128") {
    CHECK(skein::to_hex(wire::encode(std::uint32_t{0x01020304})) == "04030201");
    CHECK(skein::to_hex(wire::encode(std::int16_t{-2})) == "feff");
    CHECK(skein::to_hex(wire::encode(true)) == "01");
    CHECK(skein::to_hex(wire::encode(1.0f)) == "0000803f");
    CHECK(skein::to_hex(wire::encode(color::green)) == "07");
    CHECK(skein::to_hex(wire::encode(std::string("abc"))) == "03616263");
    CHECK(wire::encode(std::string(127, 'x')).size() == 128);
    CHECK(wire::encode(std::string(128, 'x')).size() == 130);
}

TEST_CASE("aggregates are their fields one after the other, without padding") {
    CHECK(skein::to_hex(wire::encode(padded{1, 2})) == "010200000000000000");
    CHECK(skein::to_hex(wire::encode(point{1, 1.0f})) == "010000000000803f");
    CHECK(wire::encode(nothing{}).empty());
}

TEST_CASE("optional and variant say first what follows") {
    CHECK(skein::to_hex(wire::encode(std::optional<std::uint8_t>{})) == "00");
    CHECK(skein::to_hex(wire::encode(std::optional<std::uint8_t>{5})) == "0105");
    using choice = std::variant<std::monostate, std::uint8_t, std::string>;
    CHECK(skein::to_hex(wire::encode(choice{})) == "00");
    CHECK(skein::to_hex(wire::encode(choice{std::string("z")})) == "02017a");
}

TEST_CASE("a sequence of numbers starts at a multiple of the element's size") {
    const std::vector<std::uint32_t> numbers = {1, 2};
    CHECK(skein::to_hex(wire::encode(numbers)) == "02000000"
                                                  "01000000"
                                                  "02000000");
    CHECK(skein::to_hex(wire::encode(std::vector<std::byte>{std::byte{9}})) == "0100000000000000"
                                                                               "09");
}

TEST_CASE("a span and a vector of the same elements are the same bytes") {
    const std::vector<float> v = {1, 2, 3};
    CHECK(wire::encode(std::span<const float>(v)) == wire::encode(v));
    std::vector<float> changing = v;
    CHECK(wire::encode(std::span<float>(changing)) == wire::encode(v));
    CHECK(wire::encode(std::string_view("view")) == wire::encode(std::string("view")));
}

TEST_CASE("a tuple of references is encoded like the values") {
    const std::string text = "by reference";
    const int number = 5;
    CHECK(wire::encode(std::tie(text, number)) ==
          wire::encode(std::tuple<std::string, int>(text, number)));
}

TEST_CASE("several values may follow each other in one writer") {
    wire::writer out;
    wire::encode(out, std::uint8_t{1});
    wire::encode(out, std::string("x"));
    CHECK(skein::to_hex(out.bytes()) == "010178");
}

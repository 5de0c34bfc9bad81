// SPDX-License-Identifier: Apache-2.0
#include <skein/core/bytes.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("text and bytes are views of each other") {
    const std::string text = "skein";
    const auto view = skein::as_bytes(text);
    CHECK(view.size() == 5);
    CHECK(static_cast<const void*>(view.data()) == text.data());
    CHECK(skein::as_text(view) == text);
    CHECK(skein::to_string(skein::to_buffer(text)) == text);
}

TEST_CASE("a span of numbers is seen as its memory") {
    const std::uint32_t numbers[] = {1, 0x01020304};
    CHECK(skein::to_hex(skein::as_bytes(std::span(numbers))) == "0100000004030201");
}

TEST_CASE("append adds at the end") {
    auto buffer = skein::to_buffer("ab");
    skein::append(buffer, skein::as_bytes("cd"));
    CHECK(skein::to_string(buffer) == "abcd");
}

TEST_CASE("hexadecimal text comes back, and bad text is refused") {
    std::byte out[3];
    REQUIRE(skein::from_hex("00fFa5", out));
    CHECK(skein::to_hex(out) == "00ffa5");
    CHECK_FALSE(skein::from_hex("00ffa", out));
    CHECK_FALSE(skein::from_hex("00ffa5b6", out));
    CHECK_FALSE(skein::from_hex("00fg00", out));
}

TEST_CASE("numbers are stored little endian at any address") {
    std::byte memory[9]{};
    skein::store_le(memory + 1, std::uint64_t{0x0102030405060708});
    CHECK(skein::to_hex(memory) == "000807060504030201");
    CHECK(skein::load_le<std::uint16_t>(memory + 1) == 0x0708);
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/writer.hpp>

#include <catch2/catch_test_macros.hpp>

#include <limits>

using skein::wire::writer;

TEST_CASE("a writer continues after what is in its buffer") {
    writer out(skein::to_buffer("ab"));
    out.raw(skein::as_bytes("cd"));
    CHECK(out.size() == 4);
    CHECK(skein::to_string(std::move(out).take()) == "abcd");
}

TEST_CASE("small and large pieces come out in order") {
    writer out;
    std::string expected;
    for (int i = 0; i < 300; ++i) {
        const std::string piece(static_cast<std::size_t>(i * 37 % 9000),
                                static_cast<char>('a' + i % 26));
        out.raw(skein::as_bytes(piece));
        out.fixed(static_cast<char>('0' + i % 10));
        expected += piece;
        expected += static_cast<char>('0' + i % 10);
    }
    CHECK(out.size() == expected.size());
    CHECK(skein::to_string(std::move(out).take()) == expected);
}

TEST_CASE("varint uses one byte per seven bits") {
    writer out;
    out.varint(0);
    out.varint(127);
    out.varint(128);
    out.varint(std::numeric_limits<std::uint64_t>::max());
    CHECK(skein::to_hex(out.bytes()) == "007f8001ffffffffffffffffff01");
}

TEST_CASE("align pads with zeros, and a cleared writer starts anew") {
    writer out;
    out.fixed(std::uint8_t{1});
    out.align(8);
    out.align(8);
    CHECK(out.size() == 8);
    CHECK(skein::to_hex(out.bytes()) == "0100000000000000");
    out.clear();
    CHECK(out.size() == 0);
}

TEST_CASE("the memory of a rare large message is given back") {
    writer w;
    w.raw(skein::byte_buffer(5'000'000));
    w.clear();
    CHECK(w.capacity() <= writer::kept_bytes);
    w.raw(skein::byte_buffer(1000));
    w.clear();
    const auto kept = w.capacity();
    w.raw(skein::byte_buffer(1000));
    CHECK(w.capacity() == kept);
}

TEST_CASE("bytes that the caller fills in stand where they were asked for") {
    writer w;
    w.fixed(std::uint8_t{1});
    std::byte* const at = w.extend(300); // more than it has
    for (std::size_t i = 0; i < 300; ++i) at[i] = std::byte{7};
    w.fixed(std::uint8_t{2});
    REQUIRE(w.size() == 302);
    CHECK(w.bytes()[0] == std::byte{1});
    CHECK(w.bytes()[300] == std::byte{7});
    CHECK(w.bytes()[301] == std::byte{2});
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <catch2/catch_test_macros.hpp>

#include <limits>

using skein::errc;
using skein::wire::reader;
using skein::wire::writer;

TEST_CASE("every varint comes back") {
    for (int bit = 0; bit < 64; ++bit)
        for (const int around : {-1, 0, 1}) {
            const auto value = (std::uint64_t{1} << bit) + static_cast<std::uint64_t>(around);
            writer out;
            out.varint(value);
            reader in(out.bytes());
            std::uint64_t back = 0;
            REQUIRE(in.varint(back));
            REQUIRE(back == value);
            REQUIRE(in.finish());
        }
}

TEST_CASE("a varint that is cut, too long or not the shortest is malformed") {
    const std::string_view bad[] = {"", "\x80", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
                                    "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"};
    for (const auto text : bad) {
        reader in(skein::as_bytes(text));
        std::uint64_t value = 0;
        CHECK_FALSE(in.varint(value));
        CHECK(in.status().error().code() == errc::malformed);
    }
    const std::byte zero_in_two[] = {std::byte{0x80}, std::byte{0}};
    reader in(zero_in_two);
    std::uint64_t value = 0;
    CHECK_FALSE(in.varint(value));
}

TEST_CASE("the first failure stays, and every later step fails") {
    const auto bytes = skein::to_buffer("abc");
    reader in(bytes);
    std::uint64_t eight = 0;
    CHECK_FALSE(in.fixed(eight));
    std::uint8_t one = 0;
    CHECK_FALSE(in.fixed(one));
    CHECK_FALSE(in.fail(errc::io, "later"));
    CHECK_FALSE(in.finish());
    CHECK(in.status().error().text() == "decode failed at byte 0 of 3: 8 bytes needed, 3 left");
}

TEST_CASE("raw gives a view and moves on") {
    const auto bytes = skein::to_buffer("abcdef");
    reader in(bytes);
    skein::byte_span view;
    REQUIRE(in.raw(2, view));
    CHECK(view.data() == bytes.data());
    CHECK(in.position() == 2);
    CHECK(skein::to_string(in.rest()) == "cdef");
    CHECK_FALSE(in.raw(std::numeric_limits<std::size_t>::max(), view));
}

TEST_CASE("a count is bounded by the bytes that follow") {
    writer out;
    out.varint(3);
    out.raw(skein::as_bytes("123456"));
    std::size_t n = 0;
    CHECK(reader(out.bytes()).count(2, n));
    CHECK(n == 3);
    CHECK_FALSE(reader(out.bytes()).count(3, n));
}

TEST_CASE("depth is counted") {
    skein::wire::limits two;
    two.max_depth = 2;
    reader in({}, two);
    CHECK(in.enter());
    CHECK(in.enter());
    in.leave();
    CHECK(in.enter());
    CHECK_FALSE(in.enter());
    CHECK_FALSE(in.ok());
}

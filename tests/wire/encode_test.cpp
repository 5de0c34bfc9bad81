// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/encode.hpp>

#include <skein/wire/decode.hpp>

#include <optional>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

#include "messages.hpp"

namespace {
struct chain {
    int value = 0;
    std::vector<chain> next;
};
} // namespace

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

namespace {

struct wide { // 88 bytes in memory, 4 on the wire when empty
    std::string name;
    std::vector<std::string> more;
    std::optional<std::string> maybe;
};
chain nested(int depth) {
    chain top;
    for (int i = 1; i < depth; ++i) {
        chain above;
        above.next.push_back(std::move(top));
        top = std::move(above);
    }
    return top;
}
template <class T>
bool reader_takes(const T& value) {
    return wire::decode<T>(wire::encode(value)).has_value();
}
template <class F>
bool is_too_large(F f) {
    try {
        f();
    } catch (const skein::error& e) {
        return e.code() == skein::errc::too_large;
    }
    return false;
}

} // namespace

TEST_CASE("what readers refuse is refused by the writer, at the same place") {
    CHECK(reader_takes(nested(64)));
    CHECK(is_too_large([] { (void)wire::encode(nested(65)); }));
    const std::size_t fits = (std::size_t{1} << 30) / sizeof(wide);
    wire::writer out;
    out.charge(fits, sizeof(wide));
    CHECK(is_too_large([&] { out.charge(1, sizeof(wide)); }));
    out.clear();
    wire::encode(out, std::vector<wide>(3)); // the next message counts for itself
    CHECK(out.size() > 0);
    skein::wire::writer one_more;
    try {
        wire::encode(one_more, nested(65));
    } catch (const skein::error&) {}
    wire::encode(one_more, nested(64)); // a level is left also by throwing
}

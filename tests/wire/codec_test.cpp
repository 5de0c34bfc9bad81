// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/codec.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/schema.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <memory>

#include "messages.hpp"

namespace wire = skein::wire;
using namespace wire_test;

template <>
struct skein::wire::codec<secretive> {
    static constexpr std::string_view schema = "secretive";
    static void encode(writer& out, const secretive& s) { out.varint(s.value()); }
    static result<void> decode(reader& in, secretive& s) {
        std::uint64_t v = 0;
        if (!in.varint(v)) return in.status();
        if (v > 1000) return error(errc::malformed, "a secret above 1000");
        s = secretive(static_cast<std::uint32_t>(v));
        return {};
    }
};

TEST_CASE("the concept encodable admits what travels and nothing else") {
    STATIC_CHECK(wire::encodable<everything>);
    STATIC_CHECK(wire::encodable<tree>);
    STATIC_CHECK(wire::encodable<std::tuple<const std::string&, int>>);
    STATIC_CHECK(wire::encodable<skein::result<void>>);
    STATIC_CHECK(wire::encodable<with_secret>);
    STATIC_CHECK_FALSE(wire::encodable<int*>);
    STATIC_CHECK_FALSE(wire::encodable<std::unique_ptr<int>>);
    STATIC_CHECK_FALSE(wire::encodable<std::vector<std::unique_ptr<int>>>);
    STATIC_CHECK_FALSE(wire::encodable<long double>);
    STATIC_CHECK_FALSE(wire::encodable<std::span<const std::string>>);
}

TEST_CASE("a type has fixed layout when its memory is its encoding") {
    STATIC_CHECK(wire::fixed_layout<point>);
    STATIC_CHECK(wire::fixed_layout<std::array<point, 4>>);
    STATIC_CHECK(wire::fixed_layout<skein::node_id>);
    STATIC_CHECK_FALSE(wire::fixed_layout<padded>);
    STATIC_CHECK_FALSE(wire::fixed_layout<bool>);
    STATIC_CHECK_FALSE(wire::fixed_layout<nothing>);
    STATIC_CHECK_FALSE(wire::fixed_layout<std::optional<int>>);
}

TEST_CASE("a specialised codec is used, inside containers too, and its error is kept") {
    with_secret message;
    message.all = {secretive(1), secretive(999)};
    const auto bytes = wire::encode(message);
    CHECK(bytes.size() == 4);
    const auto back = wire::decode<with_secret>(bytes);
    REQUIRE(back);
    REQUIRE(back->all.size() == 2);
    CHECK(back->all[1].value() == 999);

    message.all.push_back(secretive(1001));
    const auto refused = wire::decode<with_secret>(wire::encode(message));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().text() == "a secret above 1000");
    CHECK(wire::schema_text<with_secret>() == "{all:vec<secretive>}");
}

TEST_CASE("a length of time of an options struct travels as its duration") {
    const skein::time_span pause = std::chrono::milliseconds(1500);
    const auto bytes = wire::encode(pause);
    CHECK(bytes == wire::encode(skein::duration(pause)));
    CHECK(wire::decode<skein::time_span>(bytes).value() == pause);
    CHECK(wire::schema_text<skein::time_span>() == wire::schema_text<skein::duration>());
}

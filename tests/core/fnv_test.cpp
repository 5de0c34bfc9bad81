// SPDX-License-Identifier: Apache-2.0
#include <skein/core/fnv.hpp>

#include <catch2/catch_test_macros.hpp>

using skein::fnv1a;

namespace {
constexpr std::uint64_t hash(std::string_view text) {
    fnv1a h;
    h.text(text);
    return h.value();
}
} // namespace

TEST_CASE("FNV-1a gives the published values") {
    static_assert(hash("") == 0xcbf29ce484222325u);
    CHECK(hash("a") == 0xaf63dc4c8601ec8cu);
    CHECK(hash("foobar") == 0x85944171f73967e8u);
}

TEST_CASE("a number counts as its bytes, the lowest first") {
    fnv1a number;
    number.number(0x0807060504030201u);
    CHECK(number.value() == hash("\x01\x02\x03\x04\x05\x06\x07\x08"));
    fnv1a high;
    high.byte(0xff);
    CHECK(high.value() == hash("\xff")); // not sign-extended where char is signed
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/core/bytes.hpp>
#include <skein/net/message.hpp>
#include <skein/wire/encode.hpp>

#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace message_test {

using namespace skein;

namespace {

struct add_request {
    static constexpr std::uint16_t number = 1;
    std::vector<int> items;
};
struct add_reply {
    static constexpr std::uint16_t number = 2;
    int sum = 0;
};
struct without_number {
    int sum = 0;
};

using table = net::message_table<add_request, add_reply>;

} // namespace

static_assert(net::message<add_request>);
static_assert(!net::message<without_number>);

TEST_CASE("a table reaches every decoder of a protocol by its number") {
    CHECK(table::numbers.size() == 2);
    CHECK(table::check(1, wire::encode(add_request{{1}})));
    CHECK(table::check(99, {}).error().code() == errc::not_found);
    CHECK_FALSE(table::check(1, to_buffer("\xff\xff\xff\xff")));
}

TEST_CASE("a body that is no message is named by the message that it was taken for") {
    const auto body = wire::encode(add_reply{3});
    CHECK(net::detail::decode_message<add_reply>(body, "reply").sum == 3);
    try {
        (void)net::detail::decode_message<add_request>(to_buffer("\xff\xff"), "message");
        FAIL("it has decoded");
    } catch (const error& why) {
        CHECK(why.code() == errc::malformed);
        CHECK(why.text().find("the message") != std::string::npos);
        CHECK(why.text().find("add_request does not decode") != std::string::npos);
        CHECK_FALSE(why.cause().empty());
    }
}

} // namespace message_test

// SPDX-License-Identifier: Apache-2.0
#include <skein/net/token.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using net::token;

TEST_CASE("a token survives its text form") {
    const auto t = token::generate();
    const auto back = token::from_hex("  " + t.to_hex() + "\n");
    REQUIRE(back);
    CHECK(*back == t);
    CHECK(t.to_hex().size() == 64);
}

TEST_CASE("generated tokens differ and are not empty") {
    const auto a = token::generate(), b = token::generate();
    CHECK_FALSE(a == b);
    CHECK_FALSE(a.empty());
    CHECK(token().empty());
    CHECK(a.fingerprint() != b.fingerprint());
}

TEST_CASE("a seeded source gives the same token") {
    seeded_random one(5), two(5);
    CHECK(token::generate(one) == token::generate(two));
}

TEST_CASE("a bad token text is refused and not repeated in the message") {
    const std::string secret_looking(63, 'a');
    for (const std::string& text :
         {std::string(), secret_looking, secret_looking + "g", secret_looking + "aa"}) {
        const auto t = token::from_hex(text);
        REQUIRE_FALSE(t);
        CHECK(t.error().code() == errc::invalid_argument);
        CHECK(std::string(t.error().what()).find("aaaa") == std::string::npos);
    }
}

TEST_CASE("the fingerprint does not contain the token") {
    const auto t = token::generate();
    CHECK(t.to_hex().find(t.fingerprint()) == std::string::npos);
    CHECK(t.fingerprint().size() == 8);
}

TEST_CASE("a token of zeros only is refused: it would be no token at all") {
    const auto t = token::from_hex(std::string(64, '0'));
    REQUIRE_FALSE(t);
    CHECK(t.error().code() == errc::invalid_argument);
    CHECK(t.error().text().find("zeros") != std::string::npos);
    CHECK(token::from_hex(std::string(63, '0') + "1"));
}

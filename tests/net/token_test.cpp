// SPDX-License-Identifier: Apache-2.0
#include <skein/net/token.hpp>

#include <skein/core/sha256.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

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

TEST_CASE("a key is derived from the token, by its kind and number") {
    const auto t = token::generate();
    const auto key = t.derive({net::key_kind::attempt, 7});
    CHECK(key == t.derive({net::key_kind::attempt, 7}));
    CHECK(key.name() == net::key_name{net::key_kind::attempt, 7});
    CHECK(key.is_derived());
    CHECK_FALSE(t.is_derived());
    for (const auto& other :
         {t, t.derive({net::key_kind::attempt, 8}), t.derive({net::key_kind::node, 7}),
          token::generate().derive({net::key_kind::attempt, 7})})
        CHECK_FALSE(equal_constant_time(other.bytes(), key.bytes()));
    CHECK(t.derive({}) == t);
    CHECK(key.derive(key.name()) == key);
}

TEST_CASE("a key survives its text form, which says what it is for") {
    const auto t = token::generate();
    CHECK(token::from_text(t.to_text()).value() == t);
    CHECK(t.to_text() == t.to_hex());
    for (const auto& name :
         {net::key_name{net::key_kind::view, 0}, net::key_name{net::key_kind::submit, 0},
          net::key_name{net::key_kind::space_server, 0xfedcba9876543210},
          net::key_name{net::key_kind::attempt, 10}, net::key_name{net::key_kind::node, 1}}) {
        const auto key = t.derive(name);
        const auto back = token::from_text(" " + key.to_text() + "\n");
        REQUIRE(back);
        CHECK(*back == key);
    }
    CHECK(t.derive({net::key_kind::attempt, 10}).to_text().starts_with("attempt.a."));
}

TEST_CASE("the text of a key that is cut or wrong is refused without a word of it") {
    const auto whole =
        token::from_hex(std::string(64, '5')).value().derive({net::key_kind::attempt, 10});
    const auto text = whole.to_text();
    const auto digits = whole.to_hex();
    std::vector<std::string> bad = {"attempt.." + digits,
                                    "attempt.zz." + digits,
                                    "attempt.-1." + digits,
                                    "attempt." + digits,
                                    "cluster.0." + digits,
                                    "Attempt.a." + digits,
                                    ".a." + digits,
                                    "attempt.11112222333344445." + digits,
                                    text + "0",
                                    "attempt.a.." + digits,
                                    "attempt.a." + std::string(64, '0')};
    for (std::size_t n = 1; n < text.size(); ++n) bad.push_back(text.substr(0, n));
    for (const auto& one : bad) {
        const auto t = token::from_text(one);
        INFO(one);
        REQUIRE_FALSE(t);
        CHECK(t.error().code() == errc::invalid_argument);
        CHECK(std::string(t.error().what()).find(digits.substr(0, 6)) == std::string::npos);
    }
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/net/address.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using net::address;

TEST_CASE("an address is read and written as the same text") {
    for (const char* text :
         {"tcp:node-3:6380", "tcp:127.0.0.1:0", "tcp:[::1]:80", "tcp:[fe80::1]:65535",
          "unix:/run/app.sock", "unix-abstract:@app-1", "sim:a:1"}) {
        const auto a = address::parse(text);
        REQUIRE(a);
        CHECK(to_string(*a) == text);
    }
}

TEST_CASE("parts of an address are where they belong") {
    const auto a = address::parse("tcp:[::1]:6380");
    REQUIRE(a);
    CHECK(a->kind == net::scheme::tcp);
    CHECK(a->host == "::1");
    CHECK(a->port == 6380);
    CHECK(*a == address::tcp("::1", 6380));
    CHECK(address::abstract_unix("x") == address::abstract_unix("@x"));
}

TEST_CASE("a bad address is refused with the text and an example") {
    for (const char* text :
         {"", "node-3:6380", "tcp:node", "tcp::80", "tcp:a:", "tcp:a:65536", "tcp:a:99999999",
          "tcp:a:-1", "tcp:a:1x", "tcp:::1:80", "unix:", "unix-abstract:@", "http://a"}) {
        const auto a = address::parse(text);
        REQUIRE_FALSE(a);
        CHECK(a.error().code() == errc::invalid_argument);
        CHECK(a.error().text().find(fmt::format("'{}'", text)) != std::string::npos);
        CHECK(a.error().hint().find("tcp:host:port") != std::string::npos);
    }
}

TEST_CASE("loopback and Unix addresses are known as such") {
    CHECK(address::tcp("127.0.0.1", 1).is_loopback());
    CHECK(address::tcp("localhost", 1).is_loopback());
    CHECK(address::tcp("::1", 1).is_loopback());
    CHECK_FALSE(address::tcp("0.0.0.0", 1).is_loopback());
    CHECK_FALSE(address::tcp("10.0.0.1", 1).is_loopback());
    CHECK(address::unix_socket("/a").is_loopback());
    CHECK(address::unix_socket("/a").is_unix());
    CHECK_FALSE(address::tcp("127.0.0.1", 1).is_unix());
}

TEST_CASE("a name that only looks like a loopback address is none") {
    for (const char* host :
         {"127.example.org", "127.0.0.1.example.org", "127.", "127.1x", "::1.org"})
        CHECK_FALSE(address::tcp(host, 1).is_loopback());
    CHECK(address::tcp("127.255.3.4", 1).is_loopback());
    CHECK(address::tcp("0:0:0:0:0:0:0:1", 1).is_loopback());
}

TEST_CASE("all addresses of a host are written with a star and reach others") {
    const auto all = net::address::any(6380);
    CHECK(net::to_string(all) == "tcp:*:6380");
    CHECK(net::address::parse("tcp:*:6380").value() == all);
    CHECK_FALSE(all.is_loopback());
}

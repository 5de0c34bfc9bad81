// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>

#include <catch2/catch_test_macros.hpp>

#include <stdexcept>
#include <string>

using skein::errc;
using skein::error;

TEST_CASE("an error says where, what, why and what to do") {
    auto e = error(errc::refused, "connect a:1 refused").with_hint("is the head running?");
    CHECK(std::string(e.what()) == "connect a:1 refused; is the head running?");
    e.with_where("node-2").with_cause("errno 111");
    CHECK(std::string(e.what()) == "node-2: connect a:1 refused: errno 111; is the head running?");
    CHECK(e.text() == "connect a:1 refused");
    CHECK(e.code() == errc::refused);
}

TEST_CASE("a copy is not changed by what is added to the original") {
    error original(errc::io, "read f");
    const error copy = original;
    original.with_cause("later");
    CHECK(copy.cause().empty());
    CHECK(std::string(copy.what()) == "read f");
}

TEST_CASE("any exception becomes an error") {
    const auto from = [](auto thrown) { return skein::to_error(std::make_exception_ptr(thrown)); };
    CHECK(from(error(errc::timeout, "t")).code() == errc::timeout);
    CHECK(from(std::runtime_error("plain")).code() == errc::unknown);
    CHECK(from(std::runtime_error("plain")).text() == "plain");
    CHECK(from(5).code() == errc::unknown);
    CHECK(skein::to_error(std::make_exception_ptr(std::runtime_error("x")), errc::remote_exception)
              .code() == errc::remote_exception);
}

TEST_CASE("every code has a name of its own") {
    CHECK(to_string(errc::peer_lost) == "peer_lost");
    for (int code = 2; code <= 25; ++code) CHECK(to_string(static_cast<errc>(code)) != "unknown");
    CHECK(to_string(static_cast<errc>(9999)) == "unknown");
}

TEST_CASE("an exception without a text has one, and a very long text is cut and says so") {
    struct silent : std::exception {
        const char* what() const noexcept override { return nullptr; }
    };
    CHECK(skein::to_error(std::make_exception_ptr(silent())).text() ==
          "an exception without a text");
    const std::string longest(std::size_t{64} << 10, 'x');
    CHECK(skein::bounded_text(longest) == longest);
    const auto cut = skein::bounded_text("begin" + longest + longest + "end");
    CHECK(cut.size() < longest.size() + 100);
    CHECK(cut.starts_with("beginx"));
    CHECK(cut.ends_with("xend"));
    CHECK(cut.find("65544 of 131080 bytes are left out") != cut.npos);
    const auto e = skein::to_error(std::make_exception_ptr(std::runtime_error(longest + "!")));
    CHECK(e.text().find("bytes are left out") != std::string::npos);
}

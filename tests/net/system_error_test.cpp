// SPDX-License-Identifier: Apache-2.0
#include <skein/net/asio.hpp>
#include <skein/net/system_error.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("system codes map to the kinds a program decides on") {
    CHECK(net::errc_of(ECONNREFUSED) == errc::refused);
    CHECK(net::errc_of(ECONNRESET) == errc::reset);
    CHECK(net::errc_of(EPIPE) == errc::reset);
    CHECK(net::errc_of(EADDRINUSE) == errc::already_exists);
    CHECK(net::errc_of(EACCES) == errc::permission_denied);
    CHECK(net::errc_of(ENOSPC) == errc::disk_full);
    CHECK(net::errc_of(EMFILE) == errc::exhausted);
    CHECK(net::errc_of(ETIMEDOUT) == errc::timeout);
    CHECK(net::errc_of(12345) == errc::io);
    CHECK(net::errc_of(asio::error::make_error_code(asio::error::operation_aborted)) ==
          errc::cancelled);
    CHECK(net::errc_of(asio::error::make_error_code(asio::error::eof)) == errc::closed);
    CHECK(net::errc_of(asio::error::make_error_code(asio::error::host_not_found)) ==
          errc::not_found);
}

TEST_CASE("an error of the system keeps its text as the cause") {
    const auto e = net::system_error(ECONNREFUSED, "connect x");
    CHECK(e.text() == "connect x");
    CHECK(e.cause() == "Connection refused");
}

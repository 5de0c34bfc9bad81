// SPDX-License-Identifier: Apache-2.0
#include <skein/net/asio.hpp>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("Asio sees coroutines under every compiler through the door") {
    asio::io_context io;
    int steps = 0;
    const auto body = [](int* n) -> asio::awaitable<void> {
        ++*n;
        co_return;
    };
    asio::co_spawn(io, body(&steps), asio::detached);
    io.run();
    CHECK(steps == 1);
    CHECK(ASIO_VERSION >= 102200);
}

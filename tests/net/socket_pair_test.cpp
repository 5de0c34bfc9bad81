// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/socket_pair.hpp>

#include <array>

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("both ends of a pair are connected and close on exec", "[net][socket_pair]") {
    const auto pair = net::make_socket_pair();
    CHECK((::fcntl(pair.ours.get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((::fcntl(pair.theirs.get(), F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(::write(pair.ours.get(), "ping", 4) == 4);
    std::array<char, 8> got{};
    CHECK(::read(pair.theirs.get(), got.data(), got.size()) == 4);
}

TEST_CASE("the input of an end that is still held elsewhere can be ended behind its last byte",
          "[net][socket_pair]") {
    const auto pair = net::make_socket_pair();
    REQUIRE(::write(pair.theirs.get(), "last", 4) == 4);
    CHECK(net::end_input(pair.ours.get()));
    std::array<char, 8> got{};
    CHECK(::read(pair.ours.get(), got.data(), got.size()) == 4);
    CHECK(::read(pair.ours.get(), got.data(), got.size()) == 0);
    auto [in, out] = make_pipe();
    CHECK_FALSE(net::end_input(in.get()));
}

TEST_CASE("a network of one inherited stream gives it once and listens nowhere",
          "[net][socket_pair]") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        auto pair = net::make_socket_pair();
        net::connected_network network(
            net::adopt_unix_stream(*on, pair.ours.release(), "the parent"));
        auto connecting = network.connect({});
        auto stream = co_await connecting;
        REQUIRE(stream);
        CHECK(stream->peer_name().find("the parent") != std::string::npos);
        auto again = as_result(network.connect({}));
        const auto outcome = co_await again;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::closed);
        CHECK_THROWS_AS(network.listen({}), error);
    }(&loop));
}

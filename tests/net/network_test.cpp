// SPDX-License-Identifier: Apache-2.0
// One piece of protocol code on both worlds, through the interface only.
#include "net/support.hpp"

#include <skein/net/network.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {
task<void> reply(net::listener* at) {
    auto accepting = at->accept();
    auto s = co_await accepting;
    byte_buffer into(10);
    auto reading = s->read_some(into);
    const auto got = co_await reading;
    const byte_span part = byte_span(into).first(got);
    auto writing = s->write_all(std::span<const byte_span>(&part, 1));
    co_await writing;
}

task<std::string> protocol(net::network* a, net::network* b, net::address at) {
    auto listener = b->listen(std::move(at));
    scope serving;
    serving.spawn(reply(listener.get()));
    auto connecting = a->connect(listener->local());
    auto s = co_await connecting;
    const auto hello = to_buffer("hello");
    const byte_span part(hello);
    auto writing = s->write_all(std::span<const byte_span>(&part, 1));
    co_await writing;
    byte_buffer into(10);
    auto reading = s->read_some(into);
    const auto got = co_await reading;
    auto joined = serving.join();
    co_await joined;
    co_return to_string(byte_span(into).first(got));
}
} // namespace

TEST_CASE("the same protocol code runs on real and on simulated networks") {
    net::real_loop real;
    net::real_network sockets(real);
    CHECK(real.run(protocol(&sockets, &sockets, net::address::tcp("127.0.0.1", 0))) == "hello");
    CHECK(real.run(protocol(&sockets, &sockets, fresh_unix())) == "hello");
    sim::loop virtual_time(1);
    sim::network hosts(virtual_time, sim::faults());
    CHECK(virtual_time.run(
              protocol(&hosts.host("a"), &hosts.host("b"), net::address::sim("b", 0))) == "hello");
}

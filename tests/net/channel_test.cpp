// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/channel.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace net_test;

namespace {

/// Both ends as who does not care sees them.
struct channel_ends {
    net::channel::handle client, server;
};

task<void> hold_channel(channel_ends* out, net::link::handle l) {
    out->server = l;
    auto ended = l->wait_closed();
    l.reset();
    co_await ended;
}

/// What both kinds promise: messages in order, held back while nobody reads, and an orderly end.
task<void> talk(channel_ends* e) {
    CHECK(e->client->peer().name == "server");
    CHECK(e->server->peer_name().starts_with("client (pid 42 at here) over "));
    CHECK(e->server->peer_host() == "a");
    std::vector<std::uint64_t> came;
    bool all = false;
    std::optional<bool> orderly;
    e->server->set_handler([&](const net::frame_view& f) {
        came.push_back(f.id);
        all = f.kind == 9;
    });
    e->server->set_closed_handler([&](const error* why) { orderly = why == nullptr; });
    e->server->pause_reading();
    for (std::uint64_t i = 0; i < 100; ++i) e->client->send(1, 0, i, pattern(40, 1), pattern(7, 2));
    e->client->send({9, 0, 100, pattern(100'000, 3)});
    e->client->flush();
    co_await sleep_for(1s);
    CHECK(came.size() < 2);
    e->server->resume_reading();
    while (!all) co_await sleep_for(1ms);
    REQUIRE(came.size() == 101);
    for (std::uint64_t i = 0; i < 101; ++i) CHECK(came[i] == i);
    CHECK(e->client->is_open());
    CHECK(e->client->is_connected());
    auto goodbye = e->client->close();
    co_await goodbye;
    CHECK_FALSE(e->client->is_open());
    CHECK_FALSE(e->client->is_connected());
    auto ended = e->server->wait_closed();
    co_await ended;
    CHECK(orderly == true);
}

task<void> over_connections(sim::network* n) {
    auto connecting = connect_pair(&n->host("a"), &n->host("b"), net::address::sim("b", 1),
                                   options("client"), options("server"));
    const pair p = co_await connecting;
    channel_ends e{p.client, p.server};
    auto talking = with_timeout(talk(&e), 100s);
    co_await talking;
    auto parted = e.server->close();
    co_await parted;
}

task<void> over_links(sim::network* n) {
    channel_ends e;
    net::link_endpoint server(n->host("b"), net::address::sim("b", 1), options("server"));
    scope serving;
    serving.spawn(
        server.serve([&e](net::link::handle l) { return hold_channel(&e, std::move(l)); }));
    auto dialing = net::link::connect(n->host("a"), net::address::sim("b", 1), options("client"));
    e.client = co_await dialing;
    while (!e.server) co_await sleep_for(1ms);
    auto talking = with_timeout(talk(&e), 100s);
    co_await talking;
    e = {};
    server.close();
    auto joined = serving.join();
    co_await joined;
}

} // namespace

TEST_CASE("who has a channel need not know whether it is a connection or a link") {
    for (const bool links : {false, true}) {
        INFO((links ? "links" : "connections"));
        sim::loop loop(3);
        sim::network network(loop, sim::faults());
        loop.run(links ? over_links(&network) : over_connections(&network));
        CHECK(network.open_streams() == 0);
    }
}

TEST_CASE("a link is open while its connection is broken, a connection is not") {
    sim::loop loop(4);
    sim::network network(loop, sim::faults());
    loop.run([](sim::network* n) -> task<void> {
        channel_ends e;
        net::link_endpoint server(n->host("b"), net::address::sim("b", 1), options("server"));
        scope serving;
        serving.spawn(
            server.serve([&e](net::link::handle l) { return hold_channel(&e, std::move(l)); }));
        auto dialing =
            net::link::connect(n->host("a"), net::address::sim("b", 1), options("client"));
        e.client = co_await dialing;
        while (!e.server) co_await sleep_for(1ms);
        std::size_t came = 0;
        e.server->set_handler([&came](const net::frame_view&) { ++came; });
        n->partition("a", "b");
        n->reset("a", "b");
        while (e.client->is_connected()) {
            if (e.client->is_open()) e.client->send(1, 0, 0, pattern(40, 1));
            co_await sleep_for(1ms);
        }
        CHECK(e.client->is_open());
        CHECK(e.server->peer_host() == "a"); // still known
        e.client->send(1, 0, 0, pattern(40, 1));
        n->heal("a", "b");
        while (!e.client->is_connected()) co_await sleep_for(1ms);
        co_await sleep_for(1s);
        CHECK(came >= 2);
        e.client->abort(error(errc::closed, "the test is over"));
        auto ended = e.server->wait_closed();
        co_await ended;
        e = {};
        server.close();
        auto joined = serving.join();
        co_await joined;
    }(&network));
}

// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/handshake.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

struct both_errors {
    std::optional<error> client, server;
};

task<void> server_side(net::listener* at, net::connection_options o, std::optional<error>* out) {
    auto accepting = at->accept();
    auto s = co_await accepting;
    auto trying = error_of(drop_value(net::connection::accept(std::move(s), std::move(o))));
    *out = co_await trying;
}

/// What each side sees when they try to connect.
task<both_errors> meet(net::network* via, net::address at, net::connection_options client,
                       net::connection_options server) {
    both_errors out;
    auto listener = via->listen(std::move(at));
    scope serving;
    serving.spawn(server_side(listener.get(), std::move(server), &out.server));
    auto trying =
        error_of(drop_value(net::connection::connect(*via, listener->local(), std::move(client))));
    out.client = co_await trying;
    auto joined = serving.join();
    co_await joined;
    co_return out;
}

both_errors meet_real(net::connection_options client, net::connection_options server) {
    net::real_loop loop;
    net::real_network network(loop);
    return loop.run(
        meet(&network, net::address::tcp("127.0.0.1", 0), std::move(client), std::move(server)));
}

/// Raw bytes from a client that is something else; what the server says, and how much it answered.
task<void> speak(net::network* via, byte_buffer bytes, bool leave, std::optional<error>* out,
                 std::size_t* answered) {
    auto listener = via->listen(net::address::tcp("127.0.0.1", 0));
    scope serving;
    auto o = options("server");
    o.bounds.handshake_deadline = 200ms;
    serving.spawn(server_side(listener.get(), o, out));
    auto connecting = via->connect(listener->local());
    auto s = co_await connecting;
    const byte_span part(bytes);
    auto writing = s->write_all(std::span<const byte_span>(&part, 1));
    co_await writing;
    if (leave) s->close_send();
    byte_buffer buffer(1000);
    try {
        for (;;) {
            auto reading = s->read_some(buffer);
            const auto got = co_await reading;
            if (got == 0) break;
            *answered += got;
        }
    } catch (const error&) { // closed with our bytes unread: a reset
    }
    auto joined = serving.join();
    co_await joined;
}

struct heard {
    std::optional<error> fault;
    std::size_t answered = 0;
};
heard server_hears(byte_buffer bytes, bool leave = false) {
    heard h;
    net::real_loop loop;
    net::real_network network(loop);
    loop.run(speak(&network, std::move(bytes), leave, &h.fault, &h.answered));
    return h;
}

} // namespace

TEST_CASE("equal tokens let both in") {
    const auto e = meet_real(options("a"), options("b"));
    CHECK_FALSE(e.client);
    CHECK_FALSE(e.server);
}

TEST_CASE("another token is permission_denied on both sides, with a hint and without the token") {
    const auto e = meet_real(options("a", '1'), options("b", '2'));
    for (const auto& side : {e.client, e.server}) {
        REQUIRE(side);
        CHECK(side->code() == errc::permission_denied);
        CHECK(side->hint().find("same token") != std::string::npos);
        CHECK(std::string(side->what()).find("1111") == std::string::npos);
        CHECK(std::string(side->what()).find("2222") == std::string::npos);
    }
}

TEST_CASE("no token against a token is refused too") {
    auto none = options("a");
    none.secret = net::token();
    CHECK(meet_real(none, options("b")).client->code() == errc::permission_denied);
    CHECK(meet_real(options("a"), none).server->code() == errc::permission_denied);
    CHECK_FALSE(meet_real(none, none).client);
}

TEST_CASE("another build is a mismatch that names both, if one side asks for the same") {
    auto strict = options("worker");
    strict.require_same_build = true;
    strict.self.build_id = 0xaaaa;
    auto other = options("driver");
    other.self.build_id = 0xbbbb;
    const auto as_server = meet_real(other, strict);
    REQUIRE(as_server.server);
    CHECK(as_server.server->code() == errc::mismatch);
    CHECK(as_server.server->text().find("bbbb") != std::string::npos);
    CHECK(as_server.server->text().find("aaaa") != std::string::npos);
    REQUIRE(as_server.client);
    CHECK(as_server.client->code() == errc::mismatch);
    const auto as_client = meet_real(strict, other);
    REQUIRE(as_client.client);
    CHECK(as_client.client->code() == errc::mismatch);
}

TEST_CASE("another registry of the same build is a mismatch as well") {
    auto a = options("a"), b = options("b");
    a.require_same_build = b.require_same_build = true;
    a.self.registry_hash = 1;
    b.self.registry_hash = 2;
    const auto e = meet_real(a, b);
    REQUIRE(e.client);
    CHECK(e.client->code() == errc::mismatch);
    CHECK(e.server->code() == errc::mismatch);
    CHECK(e.server->text().find("registry") != std::string::npos);
}

TEST_CASE("a peer that is there for something else is a mismatch that names both purposes") {
    auto a = options("rank 1"), b = options("group");
    a.self.purpose = "links between ranks";
    b.self.purpose = "group of ranks";
    const auto e = meet_real(a, b);
    for (const auto& seen : {e.client, e.server}) {
        REQUIRE(seen);
        CHECK(seen->code() == errc::mismatch);
        CHECK(seen->text().find("'links between ranks'") != std::string::npos);
        CHECK(seen->text().find("'group of ranks'") != std::string::npos);
    }
    a.self.purpose = b.self.purpose;
    const auto same = meet_real(a, b);
    CHECK_FALSE(same.client);
    CHECK_FALSE(same.server);
}

TEST_CASE("foreign bytes are refused, named, and get no answer") {
    struct sample {
        const char* bytes;
        const char* name;
    };
    for (const auto& [bytes, name] :
         {sample{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"},
          sample{"\x16\x03\x01\x02\x01\x01", "TLS"}, sample{"SSH-2.0-OpenSSH_9.2\r\n", "SSH"},
          sample{"\x01\x02\x03\x04\x05\x06\x07\x08", "0102030405060708"}}) {
        const auto h = server_hears(to_buffer(bytes));
        REQUIRE(h.fault);
        CHECK(h.fault->code() == errc::malformed);
        CHECK(h.fault->text().find(name) != std::string::npos);
        CHECK(h.answered == 0);
    }
}

TEST_CASE("every single changed byte of a hello's head is refused") {
    net::detail::hello good;
    good.fill(net::side::connecting, net::protocol_version, system_random());
    CHECK_FALSE(net::detail::check_hello(good.raw, net::side::connecting));
    for (std::size_t bit = 0; bit < 8 * net::hello_bytes; ++bit) {
        auto bad = good;
        bad.raw[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        const auto fault = net::detail::check_hello(bad.raw, net::side::connecting);
        REQUIRE(fault);
        CHECK(fault->code() == errc::corrupt); // and no other protocol, version or role
    }
}

TEST_CASE("the hello of a release without checksums is a mismatch") {
    net::detail::hello h;
    h.fill(net::side::connecting, net::version_without_checksum, system_random());
    h.raw[40] ^= std::byte{1};
    const auto fault = net::detail::check_hello(h.raw, net::side::connecting);
    REQUIRE(fault);
    CHECK(fault->code() == errc::mismatch);
}

TEST_CASE("a bit that flips anywhere in a handshake is damage and never another token [F13]") {
    std::size_t flips = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        sim::loop loop(seed);
        sim::faults faults;
        faults.flip = 0.2;
        sim::network network(loop, faults);
        network.host("b");
        const auto meeting = [](sim::network* n) -> task<both_errors> {
            both_errors out;
            auto listener = n->host("b").listen(net::address::sim("b", 1));
            scope serving;
            serving.spawn(server_side(listener.get(), options("b"), &out.server));
            auto trying = error_of(drop_value(
                net::connection::connect(n->host("a"), listener->local(), options("a"))));
            out.client = co_await trying;
            auto joined = serving.join();
            co_await joined;
            co_return out;
        };
        const auto e = loop.run(meeting(&network));
        flips += network.counts().of(sim::fault::bit_flip);
        for (const auto& side : {e.client, e.server}) {
            if (!side) continue;
            CAPTURE(seed, side->what());
            CHECK((side->code() == errc::corrupt || side->code() == errc::reset ||
                   side->code() == errc::closed || side->code() == errc::timeout));
        }
    }
    CHECK(flips > 100);
}

TEST_CASE("who dials patiently gets through a network that flips bits [F13]") {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        sim::loop loop(seed);
        sim::faults faults;
        faults.flip = 0.3;
        sim::network network(loop, faults);
        const auto body = [](sim::network* n) -> task<void> {
            net::endpoint server(n->host("b"), net::address::sim("b", 1), options("b"));
            scope serving;
            serving.spawn(server.serve([](net::connection::handle c) -> task<void> {
                auto closed = c->wait_closed();
                co_await closed;
            }));
            net::reconnect_policy policy;
            policy.max_tries = 100;
            auto dialing =
                net::connect_patiently(n->host("a"), server.local(), options("a"), policy);
            const auto c = co_await dialing;
            CHECK(c->peer().name == "b");
            n->stop_faults();
            auto closing = as_result(c->close());
            (void)co_await closing;
            server.close();
            auto joined = serving.join();
            co_await joined;
        };
        loop.run(body(&network));
    }
}

TEST_CASE("another protocol version is a mismatch that names both versions") {
    net::detail::hello h;
    h.fill(net::side::connecting, 999, system_random());
    const auto fault = net::detail::check_hello(h.raw, net::side::connecting);
    REQUIRE(fault);
    CHECK(fault->code() == errc::mismatch);
    CHECK(fault->text().find("999") != std::string::npos);
}

TEST_CASE("a silent client is dropped at the deadline") {
    const auto h = server_hears({});
    REQUIRE(h.fault);
    CHECK(h.fault->code() == errc::timeout);
}

TEST_CASE("a client that leaves in the middle is a reset") {
    const auto h = server_hears(to_buffer("skein\r\n"), true);
    REQUIRE(h.fault);
    CHECK(h.fault->code() == errc::reset);
}

TEST_CASE("a replayed or reflected proof does not open the door") {
    // A client that knows no token: it takes the server's proof and sends it back as its own.
    const auto attack = [](net::network* via, std::optional<error>* out) -> task<void> {
        auto listener = via->listen(net::address::tcp("127.0.0.1", 0));
        scope serving;
        serving.spawn(server_side(listener.get(), options("server"), out));
        auto connecting = via->connect(listener->local());
        auto s = co_await connecting;
        net::detail::hello mine;
        mine.fill(net::side::connecting, net::protocol_version, system_random());
        auto sending = net::detail::write_one(s.get(), mine.raw);
        co_await sending;
        byte_buffer answer(net::detail::hello::bytes + net::detail::sealed_proof_bytes);
        auto reading = net::detail::read_exactly(s.get(), answer);
        co_await reading;
        net::detail::verdict v;
        v.fill(net::detail::handshake_status::good,
               byte_span(answer).subspan(net::detail::hello::bytes, 32), 0);
        auto replying = net::detail::write_one(s.get(), v.raw);
        co_await replying;
        net::detail::verdict back;
        auto verdict = error_of(net::detail::read_exactly(s.get(), back.raw));
        const auto lost = co_await verdict;
        if (!lost) {
            CHECK(back.status() ==
                  static_cast<std::uint32_t>(net::detail::handshake_status::token_differs));
        }
        auto joined = serving.join();
        co_await joined;
    };
    std::optional<error> seen;
    net::real_loop loop;
    net::real_network network(loop);
    loop.run(attack(&network, &seen));
    REQUIRE(seen);
    CHECK(seen->code() == errc::permission_denied);
}

TEST_CASE("our own bytes coming back are not taken for a peer") {
    const auto mirror = [](net::network* via, std::optional<error>* out) -> task<void> {
        auto listener = via->listen(net::address::tcp("127.0.0.1", 0));
        scope serving;
        const auto echo = [](net::listener* at) -> task<void> {
            auto accepting = at->accept();
            auto s = co_await accepting;
            byte_buffer hello(net::detail::hello::bytes);
            auto reading = net::detail::read_exactly(s.get(), hello);
            co_await reading;
            auto back = net::detail::write_one(s.get(), hello);
            co_await back;
        };
        serving.spawn(echo(listener.get()));
        auto trying =
            error_of(drop_value(net::connection::connect(*via, listener->local(), options("a"))));
        *out = co_await trying;
        auto joined = serving.join();
        co_await joined;
    };
    std::optional<error> seen;
    net::real_loop loop;
    net::real_network network(loop);
    loop.run(mirror(&network, &seen));
    REQUIRE(seen);
    CHECK(seen->code() == errc::malformed);
    CHECK(seen->text().find("role") != std::string::npos);
}

TEST_CASE("an identity above its limit is refused before it is read") {
    auto big = options("a");
    big.self.extra = byte_buffer(400'000);
    const auto e = meet_real(big, options("b"));
    REQUIRE(e.server);
    CHECK(e.server->code() == errc::too_large);
    CHECK(e.client);
}

TEST_CASE("the handshake survives every way of cutting its bytes") {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        sim::loop loop(seed);
        sim::faults faults;
        faults.partial_read = 0.9;
        faults.partial_write = 0.9;
        sim::network network(loop, faults);
        const auto e = loop.run(
            meet(&network.host("a"), net::address::sim("a", 1), options("a"), options("b")));
        CHECK_FALSE(e.client);
        CHECK_FALSE(e.server);
    }
}

TEST_CASE("under simulation the handshake draws from the seed, so that a run can be replayed") {
    const auto hello_of = [](std::uint64_t seed) {
        byte_buffer seen(net::detail::hello::bytes);
        const auto body = [](sim::network* w, byte_buffer* out) -> task<void> {
            const auto listener = w->host("b").listen(net::address::sim("b", 1));
            scope connecting;
            connecting.spawn(drop_value(error_of(
                drop_value(net::connection::connect(w->host("a"), listener->local(), options())))));
            auto accepting = listener->accept();
            const auto s = co_await accepting;
            auto reading = net::detail::read_exactly(s.get(), *out);
            co_await reading;
            s->close();
            auto joined = connecting.join();
            co_await joined;
        };
        sim::loop loop(seed);
        sim::network network(loop, sim::faults());
        loop.run(body(&network, &seen));
        return seen;
    };
    const auto first = hello_of(5);
    CHECK(first == hello_of(5));
    CHECK(first != hello_of(6));
}

TEST_CASE("who holds the token lets in the keys that it admits, and knows which they are") {
    auto server = options("head");
    const auto token = server.secret;
    std::vector<net::key_name> asked;
    server.admits = [&](const net::key_name& key) -> std::optional<error> {
        asked.push_back(key);
        if (key.number != 13) return std::nullopt;
        return error(errc::permission_denied, "attempt 13 has ended").with_hint("begin another");
    };
    const auto with = [&](const net::token& secret) {
        auto client = options("peer");
        client.secret = secret;
        return meet_real(client, server);
    };
    const auto key = [&](net::key_kind kind, std::uint64_t number) {
        return token.derive({kind, number});
    };
    CHECK_FALSE(with(token).client);
    CHECK_FALSE(with(key(net::key_kind::view, 0)).server);
    CHECK_FALSE(with(key(net::key_kind::attempt, 7)).client);
    CHECK(asked ==
          std::vector<net::key_name>{{}, {net::key_kind::view, 0}, {net::key_kind::attempt, 7}});

    const auto ended = with(key(net::key_kind::attempt, 13));
    for (const auto& seen : {ended.client, ended.server}) {
        REQUIRE(seen);
        CHECK(seen->code() == errc::permission_denied);
        CHECK(seen->text().find("attempt 13 has ended") != std::string::npos);
        CHECK(seen->hint() == "begin another");
    }
    asked.clear(); // a key of another number, or another token's: it is not even asked for
    CHECK(with(net::token::of_bytes({net::key_kind::attempt, 8},
                                    key(net::key_kind::attempt, 7).bytes()))
              .client->code() == errc::permission_denied);
    CHECK(with(net::token::generate().derive({net::key_kind::view, 0})).server->code() ==
          errc::permission_denied);
    CHECK(asked.empty());
}

TEST_CASE("who holds one key takes that one alone, and a token takes no keys unless it says so") {
    const auto token = options("x").secret;
    auto a = options("a"), b = options("b");
    a.secret = token.derive({net::key_kind::attempt, 7});
    b.secret = a.secret;
    CHECK_FALSE(meet_real(a, b).client);
    for (const auto& other : {token, token.derive({net::key_kind::attempt, 8}),
                              token.derive({net::key_kind::view, 0})}) {
        b.secret = other;
        for (const auto& e : {meet_real(a, b), meet_real(b, a)}) {
            REQUIRE(e.client);
            CHECK(e.client->code() == errc::permission_denied);
            REQUIRE(e.server);
            CHECK(e.server->code() == errc::permission_denied);
        }
    }
    const auto e = meet_real(a, options("b"));
    CHECK(
        e.client->text().find("the peer takes the cluster's token here, we have an attempt key") !=
        std::string::npos);
    CHECK(
        e.server->text().find("comes with an attempt key, and only the cluster's token is taken") !=
        std::string::npos);
}

TEST_CASE("a hello names a key; the release before this one is refused by its version") {
    net::detail::hello h;
    h.fill(net::side::connecting, 4, system_random(), {net::key_kind::attempt, 0x1122334455667788});
    CHECK(h.key() == net::key_name{net::key_kind::attempt, 0x1122334455667788});
    const auto fault = net::detail::check_hello(h.raw, net::side::connecting);
    REQUIRE(fault);
    CHECK(fault->code() == errc::mismatch);
    CHECK(fault->text().find("version 4, we speak 5") != std::string::npos);
    const auto before = h.raw;
    h.name({net::key_kind::view, 9});
    CHECK(h.key() == net::key_name{net::key_kind::view, 9});
    CHECK(std::equal(before.begin() + 24, before.end() - 4, h.raw.begin() + 24)); // the nonce
}

// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/connection.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

/// The same test in the real world (Unix and TCP) and in the simulated one.
void in_all_worlds(task<void> (*work)(pair), net::connection_options client = options("client"),
                   net::connection_options server = options("server")) {
    const auto both = [](net::network* a, net::network* b, net::address at,
                         net::connection_options c, net::connection_options s,
                         task<void> (*body)(pair)) -> task<void> {
        auto connecting = connect_pair(a, b, std::move(at), std::move(c), std::move(s));
        pair p = co_await connecting;
        auto running = with_timeout(body(p), 50s);
        co_await running;
        p.client->abort(error(errc::closed, "the test is over"));
        p.server->abort(error(errc::closed, "the test is over"));
        auto closing = close_pair(p);
        co_await closing;
    };
    for (const auto& at : {net::address::tcp("127.0.0.1", 0), fresh_unix()}) {
        net::real_loop loop;
        net::real_network network(loop);
        INFO(to_string(at));
        loop.run(both(&network, &network, at, client, server, work));
    }
    sim::loop loop(11);
    sim::network network(loop, sim::faults());
    loop.run(both(&network.host("a"), &network.host("b"), net::address::sim("b", 1), client, server,
                  work));
    CHECK(network.open_streams() == 0);
}

task<net::frame> next_of(net::connection::handle c) {
    auto receiving = c->receive();
    auto f = co_await receiving;
    REQUIRE(f.has_value());
    co_return std::move(*f);
}

} // namespace

TEST_CASE("peers know each other after the handshake") {
    in_all_worlds([](pair p) -> task<void> {
        CHECK(p.client->peer().name == "server");
        CHECK(p.server->peer().name == "client");
        CHECK(p.server->peer().pid == 42);
        CHECK(p.server->peer_name().starts_with("client (pid 42 at here) over "));
        co_return;
    });
}

TEST_CASE("frames of all sizes arrive whole and in order, both ways") {
    in_all_worlds([](pair p) -> task<void> {
        const std::size_t sizes[] = {0,     1,     23,    24,    4095,   4096,      4097,
                                     32767, 32768, 65535, 65536, 131072, 5'000'000, 3};
        std::uint64_t id = 0;
        for (const std::size_t n : sizes) {
            const auto body = pattern(n);
            p.client->send(1, 2, ++id, body);
            net::frame owned;
            owned.kind = 3;
            owned.id = id;
            owned.body = body;
            p.server->send(std::move(owned));
            p.client->send(1, 2, ++id, byte_span(body).first(n / 3),
                           byte_span(body).subspan(n / 3));
        }
        id = 0;
        for (const std::size_t n : sizes) {
            const auto body = pattern(n);
            for (int twice = 0; twice < 2; ++twice) {
                auto receiving = next_of(p.server);
                auto f = co_await receiving;
                CHECK(f.kind == 1);
                CHECK(f.flags == 2);
                CHECK(f.id == ++id);
                CHECK(f.body == body);
            }
            auto receiving = next_of(p.client);
            auto f = co_await receiving;
            CHECK(f.kind == 3);
            CHECK(f.body == body);
        }
    });
}

TEST_CASE("what is sent in one turn leaves in one flush") {
    in_all_worlds([](pair p) -> task<void> {
        const auto before = p.client->statistics().flushes;
        for (std::uint64_t i = 0; i < 100; ++i) p.client->send(1, 0, i, pattern(10));
        for (std::uint64_t i = 0; i < 100; ++i) {
            auto receiving = next_of(p.server);
            auto f = co_await receiving;
            CHECK(f.id == i);
        }
        CHECK(p.client->statistics().flushes == before + 1);
        CHECK(p.client->statistics().frames_out == 100);
        CHECK(p.server->statistics().frames_in == 100);
    });
}

TEST_CASE("a handler gets every frame, also those that came before it was set") {
    in_all_worlds([](pair p) -> task<void> {
        p.client->send(1, 0, 1, pattern(5));
        auto pause = sleep_for(20ms);
        co_await pause;
        std::vector<std::uint64_t> seen;
        std::size_t bytes = 0;
        event done;
        p.server->set_handler([&](const net::frame_view& f) {
            seen.push_back(f.id);
            bytes += f.take_body().size();
            if (f.id == 3) done.set();
        });
        p.client->send(1, 0, 2, pattern(100'000));
        p.client->send(1, 0, 3, pattern(7));
        auto all = done.wait();
        co_await all;
        CHECK(seen == std::vector<std::uint64_t>{1, 2, 3});
        CHECK(bytes == 100'012);
        p.server->set_handler(nullptr);
    });
}

TEST_CASE("a handler may set another handler, and the frame after it goes there") {
    in_all_worlds([](pair p) -> task<void> {
        std::string order;
        event done;
        auto* const c = p.server.get();
        const std::string captured = "a capture that is longer than any small buffer";
        c->set_handler([&, c, captured](const net::frame_view&) {
            c->set_handler([&](const net::frame_view& f) {
                order += fmt::format("second {} ", f.id);
                if (f.id == 3) done.set();
            });
            order += captured.substr(0, 9) + " "; // still alive
        });
        for (std::uint64_t i = 1; i <= 3; ++i) p.client->send(1, 0, i, {});
        auto all = done.wait();
        co_await all;
        CHECK(order == "a capture second 2 second 3 ");
        c->set_handler(nullptr);
    });
}

TEST_CASE("an exception of the handler ends the connection with its text") {
    in_all_worlds([](pair p) -> task<void> {
        p.server->set_handler(
            [](const net::frame_view&) { throw std::runtime_error("no such call"); });
        p.client->send(1, 0, 1, {});
        auto ended = p.server->wait_closed();
        co_await ended;
        REQUIRE(p.server->failure());
        CHECK(std::string(p.server->failure()->what()) == "no such call");
    });
}

TEST_CASE("close is orderly: what was sent before arrives, then nothing, without an error") {
    in_all_worlds([](pair p) -> task<void> {
        const auto big = pattern(3'000'000);
        p.client->send(1, 0, 1, big);
        p.client->send(1, 0, 2, pattern(3));
        int closed_calls = 0;
        p.server->set_closed_handler([&](const error* why) {
            ++closed_calls;
            CHECK(why == nullptr);
        });
        scope closing;
        closing.spawn(p.client->close());
        auto first = next_of(p.server);
        auto f = co_await first;
        CHECK(f.body == big);
        auto second = next_of(p.server);
        auto g = co_await second;
        CHECK(g.id == 2);
        auto receiving = p.server->receive();
        auto end = co_await receiving;
        CHECK_FALSE(end.has_value());
        auto joined = closing.join();
        co_await joined;
        auto ended = p.server->wait_closed();
        co_await ended;
        CHECK_FALSE(p.client->failure());
        CHECK_FALSE(p.server->failure());
        CHECK_FALSE(p.client->is_open());
        CHECK(closed_calls == 1);
        CHECK_THROWS_AS(p.client->send(1, 0, 3, {}), error);
        CHECK_THROWS_AS(p.server->send(1, 0, 3, {}), error);
    });
}

TEST_CASE("both sides may close at once") {
    in_all_worlds([](pair p) -> task<void> {
        auto closing = close_pair(p);
        co_await closing;
        CHECK_FALSE(p.client->failure());
        CHECK_FALSE(p.server->failure());
    });
}

TEST_CASE("abort is told on both sides, with the reason here and a reset there") {
    in_all_worlds([](pair p) -> task<void> {
        p.client->abort(error(errc::aborted, "changed my mind"));
        CHECK(p.client->failure()->code() == errc::aborted);
        auto failing = error_of(drop_value(p.server->receive()));
        const auto e = co_await failing;
        REQUIRE(e);
        CHECK(e->code() == errc::reset);
        CHECK_THROWS_AS(p.client->send(1, 0, 1, {}), error);
    });
}

TEST_CASE("dropping the last handle without close ends the connection for both") {
    const auto body = [](net::network* via) -> task<void> {
        auto connecting =
            connect_pair(via, via, fresh_unix(), options("client"), options("server"));
        pair p = co_await connecting;
        auto copy = p.client;
        p.client.reset();
        CHECK(copy->is_open());
        copy.reset();
        auto ended = p.server->wait_closed();
        co_await ended;
        REQUIRE(p.server->failure());
        CHECK(p.server->failure()->code() == errc::reset);
        auto closing = p.server->close();
        co_await closing;
    };
    net::real_loop loop;
    net::real_network network(loop);
    loop.run(body(&network));
}

TEST_CASE("send_ready holds the sender back while the queue is full") {
    auto o = options("client");
    o.bounds.max_send_queue = 100'000;
    in_all_worlds(
        [](pair p) -> task<void> {
            p.server->pause_reading();
            std::size_t most = 0;
            bool held = false;
            scope sending;
            const auto fill = [](net::connection* c, std::size_t* peak,
                                 bool* is_held) -> task<void> {
                for (std::uint64_t i = 0; i < 200; ++i) {
                    c->send(1, 0, i, pattern(50'000));
                    *peak = std::max(*peak, c->queued_bytes());
                    *is_held = c->queued_bytes() > 100'000;
                    auto room = c->send_ready();
                    co_await room;
                    *is_held = false;
                }
            };
            sending.spawn(fill(p.client.get(), &most, &held));
            while (!held) {
                auto others = sleep_for(1ms);
                co_await others;
            }
            p.server->resume_reading();
            for (std::uint64_t i = 0; i < 200; ++i) {
                auto receiving = next_of(p.server);
                auto f = co_await receiving;
                CHECK(f.id == i);
            }
            auto joined = sending.join();
            co_await joined;
            CHECK(most < 400'000);
        },
        o);
}

TEST_CASE("a full receive queue stops reading until receive() makes room") {
    auto o = options("server");
    o.bounds.max_receive_queue = 50'000;
    in_all_worlds(
        [](pair p) -> task<void> {
            for (std::uint64_t i = 0; i < 300; ++i) p.client->send(1, 0, i, pattern(20'000));
            auto pause = sleep_for(50ms);
            co_await pause;
            CHECK(p.server->statistics().frames_in < 100);
            for (std::uint64_t i = 0; i < 300; ++i) {
                auto receiving = next_of(p.server);
                auto f = co_await receiving;
                CHECK(f.id == i);
            }
        },
        options("client"), o);
}

TEST_CASE("send_borrowed returns when the kernel has all bytes") {
    in_all_worlds([](pair p) -> task<void> {
        event got;
        byte_buffer seen;
        p.server->set_handler([&](const net::frame_view& f) {
            seen = f.take_body();
            got.set();
        });
        {
            auto body = pattern(6'000'000);
            const auto head = to_buffer("head");
            auto sending = p.client->send_borrowed(1, 0, 1, head, body);
            co_await sending;
            body.assign(body.size(), std::byte{0});
        }
        auto arrived = got.wait();
        co_await arrived;
        auto expected = to_buffer("head");
        append(expected, pattern(6'000'000));
        CHECK(seen == expected);
        p.server->set_handler(nullptr);
    });
}

TEST_CASE("a frame above the limit is refused by the sender, and by the receiver if the sender "
          "does not") {
    auto small = options("server");
    small.bounds.max_frame = 1000;
    in_all_worlds(
        [](pair p) -> task<void> {
            CHECK_THROWS_AS(p.server->send(1, 0, 1, pattern(1001)), error);
            CHECK(p.server->is_open());
            p.client->send(1, 0, 1, pattern(1001));
            auto ended = p.server->wait_closed();
            co_await ended;
            REQUIRE(p.server->failure());
            CHECK(p.server->failure()->code() == errc::too_large);
            CHECK(p.server->failure()->hint().find("max_frame") != std::string::npos);
        },
        options("client"), small);
}

TEST_CASE("a cancelled receive loses no frame") {
    in_all_worlds([](pair p) -> task<void> {
        auto failing = error_of(drop_value(with_timeout(p.server->receive(), 5ms)));
        const auto e = co_await failing;
        REQUIRE(e);
        CHECK(e->code() == errc::timeout);
        p.client->send(1, 0, 9, pattern(10));
        auto receiving = next_of(p.server);
        auto f = co_await receiving;
        CHECK(f.id == 9);
    });
}

TEST_CASE("bodies without a checksum are accepted") {
    auto o = options("client");
    o.checksum_bodies = false;
    in_all_worlds(
        [](pair p) -> task<void> {
            p.client->send(1, 0, 1, pattern(100));
            auto receiving = next_of(p.server);
            auto f = co_await receiving;
            CHECK(f.body == pattern(100));
        },
        o);
}

// ---- keep-alive, in virtual time ----------------------------------------------------------------

namespace {
struct silent_world {
    sim::loop loop{3};
    sim::network network{loop, sim::faults()};
    net::keep_alive alive = {};
    void run(task<void> (*work)(silent_world*, pair)) {
        const auto both = [](silent_world* w,
                             task<void> (*body)(silent_world*, pair)) -> task<void> {
            auto client = options("client"), server = options("server");
            client.alive = server.alive = w->alive;
            auto connecting =
                connect_pair(&w->network.host("a"), &w->network.host("b"),
                             net::address::sim("b", 1), std::move(client), std::move(server));
            pair p = co_await connecting;
            auto running = body(w, p);
            co_await running;
            auto closing = close_pair(p);
            co_await closing;
        };
        loop.run(both(this, work));
        CHECK(network.open_streams() == 0);
    }
};
} // namespace

TEST_CASE("an idle connection stays open for an hour of virtual time") {
    silent_world w;
    w.run([](silent_world*, pair p) -> task<void> {
        auto hour = sleep_for(1h);
        co_await hour;
        CHECK(p.client->is_open());
        CHECK(p.server->is_open());
        CHECK_FALSE(p.client->is_suspect());
    });
    CHECK(w.loop.elapsed() >= 1h);
}

TEST_CASE("a peer that falls silent is suspected after one second and lost after three") {
    silent_world w;
    w.run([](silent_world* world, pair p) -> task<void> {
        auto settle = sleep_for(700ms);
        co_await settle;
        world->network.crash("b", false);
        const auto begin = world->loop.now();
        auto wait = sleep_for(1700ms);
        co_await wait;
        CHECK(p.client->is_suspect());
        CHECK(p.client->is_open());
        auto ended = p.client->wait_closed();
        co_await ended;
        REQUIRE(p.client->failure());
        CHECK(p.client->failure()->code() == errc::peer_lost);
        const auto took = world->loop.now() - begin;
        CHECK(took >= 2s);
        CHECK(took <= 4s);
    });
}

TEST_CASE("a cut link of one second is survived, no frame is lost") {
    silent_world w;
    w.run([](silent_world* world, pair p) -> task<void> {
        world->network.partition("a", "b");
        p.client->send(1, 0, 5, pattern(100));
        auto wait = sleep_for(1s);
        co_await wait;
        world->network.heal("a", "b");
        auto receiving = next_of(p.server);
        auto f = co_await receiving;
        CHECK(f.id == 5);
        CHECK(p.client->is_open());
    });
}

TEST_CASE("a one-way cut is noticed by both sides") {
    silent_world w;
    w.run([](silent_world* world, pair p) -> task<void> {
        world->network.block("a", "b"); // b hears nothing of a
        auto there = p.server->wait_closed();
        co_await there;
        CHECK(p.server->failure()->code() == errc::peer_lost);
        auto here = p.client->wait_closed();
        co_await here;
        CHECK(p.client->failure());
    });
}

TEST_CASE("a paused reader is not taken for dead") {
    silent_world w;
    w.run([](silent_world*, pair p) -> task<void> {
        p.server->pause_reading();
        auto wait = sleep_for(20s);
        co_await wait;
        CHECK(p.client->is_open());
        CHECK(p.server->is_open());
        p.client->send(1, 0, 5, pattern(100));
        p.server->resume_reading();
        auto receiving = next_of(p.server);
        auto f = co_await receiving;
        CHECK(f.id == 5);
    });
}

TEST_CASE("a transfer one way that takes longer than the patience with silence is survived") {
    // 32 MiB at about 3 MB/s: our pings wait behind our own bytes, and the reader owes us no
    // answer.
    const auto body = [](sim::network* w) -> task<void> {
        auto connecting = connect_pair(&w->host("a"), &w->host("b"), net::address::sim("b", 1),
                                       options("client"), options("server"));
        pair p = co_await connecting;
        p.client->send(1, 0, 1, pattern(std::size_t{32} << 20));
        auto receiving = next_of(p.server);
        auto f = co_await receiving;
        CHECK(f.body.size() == std::size_t{32} << 20);
        CHECK(p.client->is_open());
        auto closing = close_pair(p);
        co_await closing;
    };
    sim::faults slow;
    slow.least_delay = slow.most_delay = 40ms;
    slow.window = std::size_t{128} << 10;
    sim::loop loop(3);
    sim::network network(loop, slow);
    loop.run(body(&network));
    CHECK(loop.elapsed() > 9s);
}

TEST_CASE("pings that are not read do not pile up pongs") {
    silent_world w;
    w.run([](silent_world*, pair p) -> task<void> {
        constexpr std::uint16_t ping = 0xff01;
        p.client->pause_reading();
        for (std::uint64_t i = 0; i < 200'000; ++i) {
            p.client->send(ping, 0, i, {});
            if (i % 1000 == 0) {
                auto pause = sleep_for(2ms);
                co_await pause;
            }
        }
        auto settle = sleep_for(200ms);
        co_await settle;
        CHECK(p.client->queued_bytes() == 0);
        CHECK(p.server->queued_bytes() <= net::frame_header::bytes);
        CHECK(p.server->is_open());
    });
}

TEST_CASE("receive and set_handler do not undo pause_reading") {
    auto o = options("server");
    o.bounds.max_receive_queue = 1000;
    in_all_worlds(
        [](pair p) -> task<void> {
            p.client->send(1, 0, 1, pattern(2000)); // one frame fills the queue
            auto first = sleep_for(20ms);
            co_await first;
            p.server->pause_reading();
            auto receiving = next_of(p.server);
            auto f = co_await receiving;
            CHECK(f.id == 1);
            p.client->send(1, 0, 2, pattern(2000));
            auto second = sleep_for(20ms);
            co_await second;
            CHECK(p.server->statistics().frames_in == 1);
            std::vector<std::uint64_t> seen;
            p.server->set_handler([&](const net::frame_view& v) { seen.push_back(v.id); });
            auto third = sleep_for(20ms);
            co_await third;
            CHECK(seen.empty());
            p.server->resume_reading();
            auto fourth = sleep_for(20ms);
            co_await fourth;
            CHECK(seen == std::vector<std::uint64_t>{2});
            p.server->set_handler(nullptr);
        },
        options("client"), o);
}

TEST_CASE(
    "cancelling send_borrowed aborts the connection, which is not a cancellation for others") {
    silent_world w;
    w.run([](silent_world*, pair p) -> task<void> {
        p.server->pause_reading();
        const auto body = pattern(4'000'000);
        auto sending =
            error_of(with_timeout(p.client->send_borrowed(1, 0, 1, byte_span(), body), 100ms));
        const auto seen = co_await sending;
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        REQUIRE(p.client->failure());
        CHECK(p.client->failure()->code() == errc::aborted);
    });
}

TEST_CASE("a peer that takes nothing while we do not listen is given up") {
    silent_world w;
    w.run([](silent_world* world, pair p) -> task<void> {
        p.server->pause_reading(); // so its signs of life, or their absence, are not seen
        p.client->pause_reading();
        p.server->send(1, 0, 1, pattern(4'000'000));
        auto wait = sleep_for(9s);
        co_await wait;
        CHECK(p.server->is_open());
        auto ended = with_timeout(p.server->wait_closed(), 5s);
        co_await ended;
        REQUIRE(p.server->failure());
        CHECK(p.server->failure()->code() == errc::peer_lost);
        CHECK(p.server->failure()->text().find("has taken none of") != std::string::npos);
        CHECK(world->network.open_streams() <= 1);
    });
}

namespace {
/// For peers that compute: what counts is whether their host answers.
constexpr net::keep_alive by_host{net::keep_alive_mode::on, 5s, duration::max(), duration::max(),
                                  duration::max(),          15s};
} // namespace

TEST_CASE("a peer that may be silent is given up when its host confirms nothing") {
    silent_world w;
    w.alive = by_host;
    w.run([](silent_world* world, pair p) -> task<void> {
        auto before = sleep_for(1h); // nobody says anything but that
        co_await before;
        CHECK(p.client->is_open());
        world->network.partition("a", "b");
        auto shorter = sleep_for(12s);
        co_await shorter;
        world->network.heal_all();
        auto calm = sleep_for(1min);
        co_await calm;
        CHECK(p.client->is_open());
        world->network.partition("a", "b");
        const auto began = world->loop.now();
        auto ended = with_timeout(p.client->wait_closed(), 60s);
        co_await ended;
        CHECK(world->loop.now() - began >= 15s);
        CHECK(world->loop.now() - began <= 30s);
        REQUIRE(p.client->failure());
        CHECK(p.client->failure()->code() == errc::peer_lost);
        CHECK(p.client->failure()->text().find("its host has confirmed nothing") !=
              std::string::npos);
        auto other = with_timeout(p.server->wait_closed(), 60s);
        co_await other;
    });
}

TEST_CASE("a peer that reads nothing for an hour is kept while its host answers") {
    silent_world w;
    w.alive = by_host;
    w.run([](silent_world*, pair p) -> task<void> {
        p.server->pause_reading();
        for (int i = 0; i < 40; ++i) p.client->send(1, 0, 1, pattern(1'000'000));
        auto hour = sleep_for(1h);
        co_await hour;
        CHECK(p.client->is_open());
        CHECK(p.server->is_open());
        p.server->resume_reading();
        std::size_t came = 0;
        p.server->set_handler([&came](const net::frame_view&) { ++came; });
        while (came < 40) {
            auto more = sleep_for(10ms);
            co_await more;
        }
        p.server->set_handler([](const net::frame_view&) {});
    });
}

TEST_CASE("a peer that takes little by little is kept, however long it needs") {
    const auto body = [](sim::network* w) -> task<void> {
        auto connecting = connect_pair(&w->host("a"), &w->host("b"), net::address::sim("b", 1),
                                       options("client"), options("server"));
        pair p = co_await connecting;
        p.client->pause_reading();
        p.client->send(1, 0, 1, pattern(std::size_t{64} << 20));
        auto receiving = next_of(p.server);
        auto f = co_await receiving;
        CHECK(f.body.size() == std::size_t{64} << 20);
        p.client->resume_reading();
        auto closing = close_pair(p);
        co_await closing;
    };
    sim::faults slow;
    slow.least_delay = slow.most_delay = 40ms;
    slow.window = std::size_t{128} << 10;
    sim::loop loop(3);
    sim::network network(loop, slow);
    loop.run(body(&network));
    CHECK(loop.elapsed() > 15s);
}

TEST_CASE("the memory of a large frame is given back on both sides") {
    in_all_worlds([](pair p) -> task<void> {
        p.client->send(1, 0, 1, pattern(6'000'000));
        auto receiving = next_of(p.server);
        {
            const auto f = co_await receiving;
            CHECK(f.body.size() == 6'000'000);
        }
        p.server->set_handler([](const net::frame_view&) {}); // which takes no body along
        p.client->send(1, 0, 2, pattern(6'000'000));
        const auto given_back = [&p] {
            return p.server->statistics().frames_in == 2 && p.client->buffer_bytes() < 1'500'000 &&
                   p.server->buffer_bytes() < 1'500'000;
        };
        for (int moments = 0; moments < 400 && !given_back(); ++moments) { // a busy machine is late
            auto wait = sleep_for(100ms);
            co_await wait;
        }
        CHECK(given_back());
        p.server->set_handler(nullptr);
    });
}

TEST_CASE("a peer without pid and host is named without them") {
    auto anonymous = options("client");
    anonymous.self.pid = 0;
    anonymous.self.host.clear();
    in_all_worlds(
        [](pair p) -> task<void> {
            CHECK(p.server->peer_name().starts_with("client over "));
            CHECK(p.client->peer_name().starts_with("server (pid 42 at here) over "));
            co_return;
        },
        anonymous, options("server"));
}

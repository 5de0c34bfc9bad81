// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/detail/link_hello.hpp>
#include <skein/net/detail/link_window.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <vector>

using namespace net_test;

namespace {

/// A server of links at "b" and a way to it from "a", in the simulated world.
struct link_world {
    explicit link_world(std::uint64_t seed = 1, net::link_options how = {},
                        net::link_table_bounds bounds = {})
        : loop(seed), network(loop, sim::faults()), how(how), bounds(bounds) {}

    using body = std::function<task<void>(link_world&)>;

    /// Runs `work` beside the server; nothing may be left behind.
    void run(body work) {
        loop.run(whole(this, std::move(work)));
        CHECK(network.open_streams() == 0);
    }
    static task<void> whole(link_world* w, body work) {
        net::link_endpoint server(w->network.host("b"), net::address::sim("b", 1),
                                  options("server"), w->how, w->bounds);
        w->server = &server;
        scope serving;
        serving.spawn(server.serve([w](net::link::handle l) { return keep(w, std::move(l)); }));
        auto running = error_of(with_timeout(work(*w), 100s));
        const auto fault = co_await running;
        w->accepted.clear();
        server.close();
        if (fault) serving.cancel();
        auto ended = with_timeout(serving.join(), 100s);
        co_await ended;
        if (fault) throw *fault;
        w->server = nullptr;
    }
    static task<void> keep(link_world* w, net::link::handle l) {
        w->accepted.push_back(l);
        w->came.set();
        auto ended = l->wait_closed();
        l.reset();
        co_await ended;
    }
    task<net::link::handle> connect(net::link_options with) {
        auto dialing = net::link::connect(network.host("a"), net::address::sim("b", 1),
                                          options("client"), with);
        auto l = co_await dialing;
        auto there = came.wait();
        co_await there;
        came.reset();
        co_return l;
    }
    task<net::link::handle> connect() { return connect(how); }

    sim::loop loop;
    sim::network network;
    net::link_options how;
    net::link_table_bounds bounds;
    net::link_endpoint* server = nullptr;
    std::vector<net::link::handle> accepted;
    event came;
};

task<void> wait_until(std::function<bool()> holds) {
    while (!holds()) {
        auto pause = sleep_for(1ms);
        co_await pause;
    }
}

/// Receives `count` messages with the ids from `first` on.
task<void> expect_ids(net::link::handle l, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
        auto next = l->receive();
        auto f = co_await next;
        REQUIRE(f.has_value());
        REQUIRE(f->id == i);
        REQUIRE(f->body == pattern(f->body.size(), static_cast<unsigned>(i)));
    }
}

void send_ids(net::link& l, std::uint64_t first, std::uint64_t count, std::size_t bytes = 40) {
    for (std::uint64_t i = first; i < first + count; ++i) {
        l.send(1, 0, i, pattern(bytes, static_cast<unsigned>(i)));
    }
}

task<void> both_closed(net::link::handle a, net::link::handle b) {
    scope closing;
    closing.spawn(a->close());
    closing.spawn(b->close());
    auto joined = closing.join();
    co_await joined;
}

} // namespace

TEST_CASE("a link's window gives back what was not confirmed, in order, small and large") {
    net::detail::link_window w;
    const auto size_of = [](std::uint64_t i) -> std::size_t {
        return i % 7 == 0 ? 9000 : i * 31 % 3000;
    };
    std::uint64_t pushed = 0, handed = 0;
    const auto push = [&](std::uint64_t n) {
        for (; n > 0; --n, ++pushed) {
            const auto body = pattern(size_of(pushed), static_cast<unsigned>(pushed));
            if (pushed % 7 == 0) {
                w.push(3, 0, pushed, std::make_shared<const byte_buffer>(body));
            } else {
                w.push(3, 5, pushed, byte_span(body).first(body.size() / 2),
                       byte_span(body).subspan(body.size() / 2));
            }
        }
    };
    const auto hand = [&](std::uint64_t n) {
        for (; n > 0; --n, ++handed) {
            const auto e = w.hand_next();
            REQUIRE(e.id == handed);
            REQUIRE((e.large != nullptr) == (handed % 7 == 0));
            REQUIRE(to_buffer(e.body) == pattern(size_of(handed), static_cast<unsigned>(handed)));
        }
    };
    push(100);
    hand(60);
    CHECK(w.acknowledge(25));
    CHECK_FALSE(w.acknowledge(24)); // they were confirmed
    CHECK_FALSE(w.acknowledge(61)); // never sent
    w.rewind();
    handed = 25;
    hand(75);
    CHECK(!w.has_pending());
    push(50);
    hand(10);
    CHECK(w.acknowledge(110));
    CHECK(w.messages() == 40);
    w.rewind();
    hand(40);
    CHECK(w.acknowledge(150));
    CHECK(w.messages() == 0);
    CHECK(w.bytes() == 0);
    CHECK(w.pending_bytes() == 0);
    CHECK(w.capacity() <= 3 * 16384); // a block and a spare one
    w.push_handed(3, 0, pushed++, {}, pattern(9));
    ++handed;
    w.push_handed(3, 0, pushed++, {}, pattern(9));
    ++handed;
    push(3);
    hand(3);
    CHECK(w.acknowledge(155));
}

TEST_CASE("messages of all sizes go both ways over a link, and both ends close in order") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        CHECK(l->resumes());
        CHECK(there->resumes());
        CHECK(l->peer().name == "server");
        CHECK(there->peer().name == "client");
        CHECK(there->peer_incarnation() == l->incarnation());
        CHECK(l->peer_incarnation() == w.server->table().incarnation());
        const std::size_t sizes[] = {0, 1, 4095, 8192, 70'000, 5'000'000, 3};
        std::uint64_t id = 0;
        for (const std::size_t n : sizes) {
            ++id;
            l->send(1, 2, id, pattern(n, static_cast<unsigned>(id)));
            there->send({1, 2, id, pattern(n, static_cast<unsigned>(id))});
        }
        auto in = expect_ids(there, 1, 7);
        co_await in;
        auto out = expect_ids(l, 1, 7);
        co_await out;
        auto closing = both_closed(l, there);
        co_await closing;
        CHECK(l->ending() == net::link_end::orderly);
        CHECK(there->ending() == net::link_end::orderly);
        CHECK_FALSE(l->failure());
        CHECK(w.server->table().links() == 0);
    });
}

TEST_CASE("a link that loses its connection goes on, and each message comes once and in order") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        std::uint64_t sent = 0;
        for (int round = 0; round < 5; ++round) {
            send_ids(*l, sent, 300);
            send_ids(*there, sent, 300);
            if (round % 2 == 0) l->flush();
            w.network.reset("a", "b");
            send_ids(*l, sent + 300, 20); // while it is broken, or nobody has noticed yet
            send_ids(*there, sent + 300, 20);
            auto in = expect_ids(there, sent, 320);
            co_await in;
            auto out = expect_ids(l, sent, 320);
            co_await out;
            sent += 320;
        }
        CHECK(l->statistics().resumes == 5);
        CHECK(l->statistics().sent_again > 0);
        CHECK(l->statistics().messages_in == sent);
        CHECK(w.accepted.size() == 1); // the handler has seen one link
        auto closing = both_closed(l, there);
        co_await closing;
        CHECK(l->ending() == net::link_end::orderly);
        CHECK(there->ending() == net::link_end::orderly);
    });
}

TEST_CASE("a link gives up when nobody has listened at its peer's address for long enough") {
    link_world w;
    w.how.resume_within = 60s;
    w.run([](link_world& w) -> task<void> {
        auto with = w.how;
        with.refused_within = 500ms;
        auto connecting = w.connect(with);
        auto l = co_await connecting;
        w.server->close(); // a process that has ended takes its door along
        w.network.crash("b");
        const auto began = w.loop.now();
        auto ended = l->wait_closed();
        co_await ended;
        CHECK(w.loop.now() - began >= 500ms);
        CHECK(w.loop.now() - began < 3s);
        CHECK(l->ending() == net::link_end::deadline);
        REQUIRE(l->failure());
        CHECK(l->failure()->code() == errc::peer_lost);
        const std::string text = l->failure()->what();
        INFO(text);
        CHECK(text.find("nobody listens at sim:b:1 any more") != text.npos);
    });
}

TEST_CASE("a link that is closed waits less for a broken peer than one that is in use") {
    link_world w;
    w.how.resume_within = 600s;
    w.how.part_within = 2s;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        w.network.partition("a", "b");
        w.network.reset("a", "b");
        l->send(1, 0, 0, pattern(40, 1));
        const auto began = w.loop.now();
        auto closing = l->close();
        co_await closing;
        CHECK(w.loop.now() - began < 5s);
        CHECK(l->ending() == net::link_end::here);
        w.accepted.at(0)->abort(error(errc::closed, "the test is over"));
    });
}

TEST_CASE("a link whose connections break at once dials again in growing pauses") {
    link_world w;
    w.how.resume_within = 8s;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        for (int i = 0; i < 3000; ++i) { // 3 s
            if (l->is_connected()) w.network.reset("a", "b");
            auto pause = sleep_for(1ms);
            co_await pause;
        }
        CHECK(l->statistics().breaks > 3);
        CHECK(l->statistics().breaks < 60);
        send_ids(*l, 0, 10); // and it is still the same link
        auto in = expect_ids(there, 0, 10);
        co_await in;
        auto closing = both_closed(l, there);
        co_await closing;
    });
}

TEST_CASE("a link survives a cut shorter than its limit and ends after a longer one") {
    for (const bool longer : {false, true}) {
        link_world w(3);
        w.run([longer](link_world& w) -> task<void> {
            auto connecting = w.connect();
            auto l = co_await connecting;
            auto there = w.accepted.at(0);
            w.network.partition("a", "b");
            send_ids(*l, 0, 10);
            // 3 s of silence until the connection is given up, then 3 s to come back.
            auto pause = sleep_for(longer ? 8s : 4s);
            co_await pause;
            w.network.heal("a", "b");
            if (longer) {
                CHECK(l->ending() == net::link_end::deadline);
                CHECK(there->ending() == net::link_end::deadline);
                REQUIRE(l->failure());
                CHECK(l->failure()->code() == errc::peer_lost);
                CHECK(l->failure()->text().find("did not come back within 3 s") !=
                      std::string::npos);
                CHECK_THROWS_AS(l->send(1, 0, 0, {}), error);
            } else {
                auto in = expect_ids(there, 0, 10);
                co_await in;
                CHECK(l->ending() == net::link_end::none);
            }
            auto closing = both_closed(l, there);
            co_await closing;
        });
    }
}

TEST_CASE(
    "a peer that is half open gets its link back on a newer connection, the old one is fenced") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        send_ids(*l, 0, 100);
        w.network.block("a", "b"); // what is sent now waits in the network
        send_ids(*l, 100, 100);
        l->flush();
        auto pause = sleep_for(2ms);
        co_await pause;
        w.network.block("b", "a");
        w.network.reset("a", "b"); // nobody is told: both ends are half open
        auto later = sleep_for(2s);
        co_await later;
        w.network.heal("a",
                       "b"); // and what waited comes late, on a connection of an older generation
        send_ids(*l, 200, 100);
        auto in = expect_ids(there, 0, 300);
        co_await in;
        CHECK(there->generation() > 1);
        CHECK(there->statistics().messages_in == 300);
        auto closing = both_closed(l, there);
        co_await closing;
        CHECK(l->ending() == net::link_end::orderly);
    });
}

TEST_CASE("a link breaks at every point of its greeting and loses nothing") {
    // The connection is reset t microseconds after the first break, so that some t falls on each
    // message of the dial, the handshake, the hello and what is sent again.
    std::uint64_t again = 0;
    for (int t = 0; t < 6000; t += 97) {
        link_world w(static_cast<std::uint64_t>(t) + 1);
        w.run([t, &again](link_world& w) -> task<void> {
            auto connecting = w.connect();
            auto l = co_await connecting;
            auto there = w.accepted.at(0);
            send_ids(*l, 0, 50);
            send_ids(*there, 0, 50);
            w.network.reset("a", "b");
            auto pause = sleep_for(std::chrono::microseconds(t));
            co_await pause;
            w.network.reset("a", "b");
            send_ids(*l, 50, 10);
            auto in = expect_ids(there, 0, 60);
            co_await in;
            auto out = expect_ids(l, 0, 50);
            co_await out;
            again += l->statistics().resumes > 1;
            auto closing = both_closed(l, there);
            co_await closing;
            CHECK(l->ending() == net::link_end::orderly);
            CHECK(there->ending() == net::link_end::orderly);
        });
    }
    CHECK(again > 10);
}

TEST_CASE("a first hello that is interrupted is an error of connect, or tried again on request") {
    for (int t = 100; t < 4000; t += 203) {
        link_world w(static_cast<std::uint64_t>(t));
        w.how.first.max_tries = 5;
        w.run([t](link_world& w) -> task<void> {
            scope breaking;
            const auto reset = [](link_world* w, int after) -> task<void> {
                auto pause = sleep_for(std::chrono::microseconds(after));
                co_await pause;
                w->network.reset("a", "b");
            };
            breaking.spawn(reset(&w, t));
            auto connecting = w.connect();
            auto l = co_await connecting;
            auto joined = breaking.join();
            co_await joined;
            auto there = w.accepted.at(0);
            send_ids(*l, 0, 5);
            auto in = expect_ids(there, 0, 5);
            co_await in;
            CHECK(w.accepted.size() == 1); // tries of one connect are one link
            auto closing = both_closed(l, there);
            co_await closing;
            CHECK(l->ending() == net::link_end::orderly);
        });
    }
}

TEST_CASE("two processes that dial each other have two links that do not disturb each other") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        net::link_endpoint other(w.network.host("a"), net::address::sim("a", 1), options("client"));
        scope serving;
        net::link::handle from_b;
        const auto hold = [](net::link::handle* out, net::link::handle l) -> task<void> {
            *out = l;
            auto ended = l->wait_closed();
            l.reset();
            co_await ended;
        };
        serving.spawn(
            other.serve([&](net::link::handle l) { return hold(&from_b, std::move(l)); }));
        auto one = w.connect();
        auto ab = co_await one;
        auto two =
            net::link::connect(w.network.host("b"), net::address::sim("a", 1), options("server"));
        auto ba = co_await two;
        auto there = w.accepted.at(0);
        send_ids(*ab, 0, 20);
        send_ids(*ba, 100, 20);
        w.network.reset("a", "b");
        auto in = expect_ids(there, 0, 20);
        co_await in;
        auto back = expect_ids(from_b, 100, 20);
        co_await back;
        auto closing = both_closed(ab, there);
        co_await closing;
        auto closing_too = both_closed(ba, from_b);
        co_await closing_too;
        from_b.reset();
        other.close();
        auto ended = serving.join();
        co_await ended;
    });
}

TEST_CASE("a full window holds send_ready back until the peer confirms, and send has a limit of "
          "its own") {
    link_world w;
    w.how.window_messages = 64;
    w.how.most_messages = 200;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        w.network.partition("a", "b");
        for (std::uint64_t i = 0; i < 65; ++i)
            l->send(1, 0, i, pattern(10, static_cast<unsigned>(i)));
        CHECK(l->kept_messages() == 65);
        bool ready = false;
        const auto wait = [](net::link::handle l, bool* out) -> task<void> {
            auto room = l->send_ready();
            co_await room;
            *out = true;
        };
        scope waiting;
        waiting.spawn(wait(l, &ready));
        auto pause = sleep_for(1s);
        co_await pause;
        CHECK_FALSE(ready);
        for (std::uint64_t i = 65; i < 200; ++i)
            l->send(1, 0, i, pattern(10, static_cast<unsigned>(i)));
        try {
            l->send(1, 0, 200, {});
            FAIL("a message above the limit was taken");
        } catch (const error& e) {
            CHECK(e.code() == errc::exhausted);
        }
        w.network.heal("a", "b");
        auto in = expect_ids(there, 0, 200);
        co_await in;
        auto joined = waiting.join();
        co_await joined;
        CHECK(ready);
        auto confirmed = wait_until([&] { return l->kept_messages() == 0; });
        co_await confirmed;
        CHECK(l->kept_bytes() == 0);
        auto closing = both_closed(l, there);
        co_await closing;
    });
}

TEST_CASE("a waiting sender can be cancelled, and the link goes on") {
    link_world w;
    w.how.window_messages = 4;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        w.network.partition("a", "b");
        send_ids(*l, 0, 10);
        auto waiting = error_of(with_timeout(l->send_ready(), 100ms));
        const auto why = co_await waiting;
        REQUIRE(why);
        CHECK(why->code() == errc::timeout);
        w.network.heal("a", "b");
        auto in = expect_ids(w.accepted.at(0), 0, 10);
        co_await in;
        auto closing = both_closed(l, w.accepted.at(0));
        co_await closing;
        CHECK(l->ending() == net::link_end::orderly);
    });
}

TEST_CASE("a link that is closed while its connection is broken delivers the rest first") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        w.network.reset("a", "b");
        send_ids(*l, 0, 30);
        scope closing;
        closing.spawn(l->close());
        auto in = expect_ids(there, 0, 30);
        co_await in;
        auto last = there->receive();
        const auto none = co_await last;
        CHECK_FALSE(none);
        auto joined = closing.join();
        co_await joined;
        CHECK(l->ending() == net::link_end::orderly);
        auto ended = there->wait_closed();
        co_await ended;
        CHECK(there->ending() == net::link_end::orderly);
    });
}

TEST_CASE("a close broken at any point is orderly on both sides") {
    for (int t = 0; t < 5000; t += 113) {
        link_world w(static_cast<std::uint64_t>(t) + 7);
        w.run([t](link_world& w) -> task<void> {
            auto connecting = w.connect();
            auto l = co_await connecting;
            auto there = w.accepted.at(0);
            send_ids(*l, 0, 10);
            send_ids(*there, 0, 10);
            scope closing;
            closing.spawn(t % 2 == 0 ? l->close() : there->close());
            auto pause = sleep_for(std::chrono::microseconds(t));
            co_await pause;
            w.network.reset("a", "b");
            auto joined = closing.join();
            co_await joined;
            auto rest = both_closed(l, there);
            co_await rest;
            CHECK(l->ending() == net::link_end::orderly);
            CHECK(there->ending() == net::link_end::orderly);
            CHECK(l->statistics().messages_in == 10);
            CHECK(there->statistics().messages_in == 10);
        });
    }
}

TEST_CASE("close of a link whose peer never answers ends in time and says what was not confirmed") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        w.network.partition("a", "b");
        send_ids(*l, 0, 3);
        auto closing = l->close();
        co_await closing;
        CHECK(l->ending() == net::link_end::here);
        REQUIRE(l->failure());
        CHECK(l->failure()->code() == errc::timeout);
        CHECK(l->failure()->text().find("4 messages were not confirmed") != std::string::npos);
    });
}

TEST_CASE("a peer that is declared dead is cut off at once and told so when it comes back") {
    for (const bool connected : {true, false}) {
        link_world w;
        w.run([connected](link_world& w) -> task<void> {
            auto connecting = w.connect();
            auto l = co_await connecting;
            auto there = w.accepted.at(0);
            if (!connected) w.network.partition("a", "b");
            const error* told = nullptr;
            there->set_closed_handler([&](const error* why) { told = why; });
            there->declare_dead("agent 7: signal 9");
            CHECK(told != nullptr);
            CHECK(there->ending() == net::link_end::declared_dead);
            CHECK(there->failure()->code() == errc::peer_lost);
            CHECK(std::string(there->failure()->what()).find("agent 7: signal 9") !=
                  std::string::npos);
            if (!connected) {
                w.network.reset("a", "b");
                w.network.heal("a", "b");
            }
            auto ended = l->wait_closed();
            co_await ended;
            CHECK(l->ending() == net::link_end::declared_dead);
            CHECK(std::string(l->failure()->what()).find("agent 7: signal 9") != std::string::npos);
        });
    }
}

TEST_CASE("a peer that was started again is told apart from one that is away") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        // A server of its own, which is replaced by another incarnation.
        scope first, second;
        auto server = std::make_unique<net::link_endpoint>(
            w.network.host("c"), net::address::sim("c", 1), options("server"));
        first.spawn(server->serve([](net::link::handle l) -> task<void> {
            auto ended = l->wait_closed();
            l.reset();
            co_await ended;
        }));
        auto dialing =
            net::link::connect(w.network.host("a"), net::address::sim("c", 1), options("client"));
        auto l = co_await dialing;
        const auto before = l->peer_incarnation();
        server->close();
        w.network.crash("c");
        net::link_endpoint again(w.network.host("c"), net::address::sim("c", 1), options("server"));
        second.spawn(again.serve([](net::link::handle l) -> task<void> {
            auto ended = l->wait_closed();
            l.reset();
            co_await ended;
        }));
        auto ended = l->wait_closed();
        co_await ended;
        CHECK(again.table().incarnation() != before);
        CHECK(l->ending() == net::link_end::restarted);
        CHECK(l->failure()->code() == errc::peer_lost);
        CHECK(l->failure()->text().find("another process than before") != std::string::npos);
        // Nor does it connect when it expects the first one.
        net::link_options how;
        how.expect = before;
        auto wrong = error_of(drop_value(net::link::connect(
            w.network.host("a"), net::address::sim("c", 1), options("client"), how)));
        const auto why = co_await wrong;
        REQUIRE(why);
        CHECK(why->code() == errc::peer_lost);
        again.close();
        auto one = first.join();
        co_await one;
        auto two = second.join();
        co_await two;
    });
}

TEST_CASE("a peer that has forgotten the link says so") {
    link_world w;
    w.how.resume_within = 200ms;
    w.run([](link_world& w) -> task<void> {
        auto patient = w.how;
        patient.resume_within = 20s;
        auto connecting = w.connect(patient);
        auto l = co_await connecting;
        w.network.crash("a", true); // the server sees it at once, and does not wait long
        w.network.partition("a", "b");
        auto pause = sleep_for(5s);
        co_await pause;
        w.network.heal("a", "b");
        auto ended = l->wait_closed();
        co_await ended;
        CHECK(l->ending() == net::link_end::forgotten);
        CHECK(l->failure()->text().find("has forgotten the link") != std::string::npos);
    });
}

TEST_CASE("an aborted link ends at its peer with the reason, connected or not") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        there->abort(error(errc::io, "the disk is full"));
        auto ended = l->wait_closed();
        co_await ended;
        CHECK(l->ending() == net::link_end::by_peer);
        CHECK(std::string(l->failure()->what()).find("the disk is full") != std::string::npos);

        auto again = w.connect();
        l = co_await again;
        there = w.accepted.at(1);
        l.reset(); // dropped without close
        auto gone = there->wait_closed();
        co_await gone;
        CHECK(there->ending() == net::link_end::by_peer);
        CHECK(std::string(there->failure()->what()).find("dropped without close") !=
              std::string::npos);
    });
}

TEST_CASE(
    "a handler that throws ends the link on both sides, and its message does not come again") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        int calls = 0;
        there->set_handler([&](const net::frame_view&) {
            ++calls;
            throw error(errc::io, "no more");
        });
        send_ids(*l, 0, 2);
        auto ended = l->wait_closed();
        co_await ended;
        CHECK(calls == 1);
        CHECK(there->ending() == net::link_end::here);
        CHECK(l->ending() == net::link_end::by_peer);
    });
}

TEST_CASE("a paused link stops its peer, and goes on after a break and a resume of reading") {
    link_world w;
    w.run([](link_world& w) -> task<void> {
        auto connecting = w.connect();
        auto l = co_await connecting;
        auto there = w.accepted.at(0);
        std::uint64_t got = 0;
        there->set_handler([&](const net::frame_view& f) {
            CHECK(f.id == got);
            if (++got == 3) there->pause_reading();
        });
        for (std::uint64_t i = 0; i < 10; ++i) {
            l->send(1, 0, i, pattern(40));
            l->flush();
            auto pause = sleep_for(5ms);
            co_await pause;
        }
        CHECK(got == 3);
        w.network.reset("a", "b");
        auto pause = sleep_for(500ms);
        co_await pause;
        CHECK(got == 3);
        there->resume_reading();
        auto all = wait_until([&] { return got == 10; });
        co_await all;
        there->set_handler(nullptr);
        auto closing = both_closed(l, there);
        co_await closing;
    });
}

TEST_CASE("over a Unix socket nothing is kept, and a broken connection is the end") {
    run_real<void>([](net::real_loop& loop) -> task<void> {
        net::real_network network(loop);
        net::link_endpoint server(network, fresh_unix(), options("server"));
        net::link::handle there;
        event came;
        scope serving;
        const auto hold = [](net::link::handle* out, event* came,
                             net::link::handle l) -> task<void> {
            *out = l;
            came->set();
            auto ended = l->wait_closed();
            l.reset();
            co_await ended;
        };
        serving.spawn(
            server.serve([&](net::link::handle l) { return hold(&there, &came, std::move(l)); }));
        auto dialing = net::link::connect(network, server.local(), options("client"));
        auto l = co_await dialing;
        auto coming = came.wait();
        co_await coming;
        CHECK_FALSE(l->resumes());
        CHECK_FALSE(there->resumes());
        send_ids(*l, 0, 100);
        CHECK(l->kept_messages() == 0);
        auto in = expect_ids(there, 0, 100);
        co_await in;
        auto closing = both_closed(l, there);
        co_await closing;
        CHECK(l->ending() == net::link_end::orderly);
        CHECK(there->ending() == net::link_end::orderly);

        came.reset();
        auto again = net::link::connect(network, server.local(), options("client"));
        l = co_await again;
        auto coming_too = came.wait();
        co_await coming_too;
        l.reset();
        auto gone = there->wait_closed();
        co_await gone;
        CHECK(there->ending() == net::link_end::by_peer);
        there.reset();
        server.close();
        auto ended = serving.join();
        co_await ended;
    });
}

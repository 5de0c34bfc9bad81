// SPDX-License-Identifier: Apache-2.0
// The contract of net::stream and net::listener, held by both worlds.
#include "net/support.hpp"

#include <skein/net/stream.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

struct ends {
    net::listener* at;
    std::unique_ptr<net::stream> here, there;
};

task<void> take_one(net::listener* at, std::unique_ptr<net::stream>* out) {
    auto accepting = at->accept();
    *out = co_await accepting;
}

task<void> with_ends(net::network* a, net::network* b, net::address at, task<void> (*body)(ends*)) {
    auto listener = b->listen(std::move(at));
    ends e;
    e.at = listener.get();
    scope accepting;
    accepting.spawn(take_one(listener.get(), &e.there));
    auto connecting = a->connect(listener->local());
    e.here = co_await connecting;
    auto joined = accepting.join();
    co_await joined;
    auto running = with_timeout(body(&e), 50s);
    co_await running;
}

void in_all_worlds(task<void> (*body)(ends*)) {
    for (const auto& at : {net::address::tcp("127.0.0.1", 0), fresh_unix()}) {
        INFO(to_string(at));
        net::real_loop loop;
        net::real_network network(loop);
        loop.run(with_ends(&network, &network, at, body));
    }
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    loop.run(with_ends(&network.host("a"), &network.host("b"), net::address::sim("b", 7), body));
    CHECK(network.open_streams() == 0);
}

task<void> write(net::stream* s, byte_buffer bytes) {
    const byte_span part(bytes);
    auto writing = s->write_all(std::span<const byte_span>(&part, 1));
    co_await writing;
}

task<byte_buffer> read_to_end(net::stream* s) {
    byte_buffer all, piece(10000);
    for (;;) {
        auto reading = s->read_some(piece);
        const auto got = co_await reading;
        if (got == 0) break;
        append(all, byte_span(piece).first(got));
    }
    co_return all;
}

} // namespace

TEST_CASE("bytes arrive in order and the end after them, in both directions") {
    in_all_worlds([](ends* e) -> task<void> {
        scope both;
        both.spawn(write(e->here.get(), pattern(700'000, 1)));
        auto first = to_buffer("small");
        auto sending = write(e->there.get(), first);
        co_await sending;
        e->there->close_send();
        auto back = read_to_end(e->here.get());
        const auto got_back = co_await back;
        CHECK(got_back == first);
        scope closing;
        const auto finish = [](scope* writers, net::stream* s) -> task<void> {
            auto joined = writers->join();
            co_await joined;
            s->close_send();
        };
        closing.spawn(finish(&both, e->here.get()));
        auto reading = read_to_end(e->there.get());
        const auto got = co_await reading;
        CHECK(got == pattern(700'000, 1));
        auto joined = closing.join();
        co_await joined;
    });
}

TEST_CASE("a batch is written in order, empty parts included") {
    in_all_worlds([](ends* e) -> task<void> {
        std::vector<byte_buffer> own;
        byte_buffer expected;
        for (std::size_t i = 0; i < 300; ++i) { // more than one system call takes
            own.push_back(pattern(i % 7 == 3 ? 0 : i, static_cast<unsigned>(i)));
            append(expected, own.back());
        }
        const std::vector<byte_span> parts(own.begin(), own.end());
        auto writing = e->here->write_all(parts);
        co_await writing;
        e->here->close_send();
        auto reading = read_to_end(e->there.get());
        const auto got = co_await reading;
        CHECK(got == expected);
    });
}

TEST_CASE("try_read and try_write do not wait") {
    in_all_worlds([](ends* e) -> task<void> {
        byte_buffer into(100);
        CHECK_FALSE(e->there->try_read(into).has_value());
        const auto all = pattern(30'000'000);
        const byte_span part(all);
        const auto put = e->here->try_write(std::span<const byte_span>(&part, 1));
        CHECK(put > 0);
        CHECK(put < all.size());
        std::size_t got_all = 0;
        byte_buffer piece(100'000);
        while (got_all < put) {
            auto reading = e->there->read_some(piece);
            const auto got = co_await reading;
            CHECK(std::equal(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(got),
                             all.begin() + static_cast<std::ptrdiff_t>(got_all)));
            got_all += got;
        }
        CHECK(got_all == put);
    });
}

TEST_CASE("close wakes a waiting read with closed") {
    in_all_worlds([](ends* e) -> task<void> {
        scope reading;
        std::optional<error> seen;
        const auto read = [](net::stream* s, std::optional<error>* out) -> task<void> {
            auto trying = error_of(drop_value(read_to_end(s)));
            *out = co_await trying;
        };
        reading.spawn(read(e->here.get(), &seen));
        auto pause = sleep_for(2ms);
        co_await pause;
        e->here->close();
        e->here->close();
        auto joined = reading.join();
        co_await joined;
        REQUIRE(seen);
        CHECK(seen->code() == errc::closed);
        auto again = error_of(write(e->here.get(), pattern(1)));
        const auto late = co_await again;
        REQUIRE(late);
        CHECK(late->code() == errc::closed);
    });
}

TEST_CASE("a cancelled read loses no byte, and the stream stays usable") {
    in_all_worlds([](ends* e) -> task<void> {
        byte_buffer into(100);
        for (int round = 0; round < 5; ++round) {
            auto trying = error_of(drop_value(with_timeout(e->there->read_some(into), 2ms)));
            const auto seen = co_await trying;
            REQUIRE(seen);
            CHECK(seen->code() == errc::timeout);
        }
        auto writing = write(e->here.get(), pattern(50));
        co_await writing;
        auto reading = e->there->read_some(into);
        const auto got = co_await reading;
        CHECK(got == 50);
    });
}

TEST_CASE("a read that is cancelled does not disturb a write of the same stream") {
    in_all_worlds([](ends* e) -> task<void> {
        scope writing;
        writing.spawn(write(e->here.get(), pattern(20'000'000)));
        byte_buffer into(10);
        auto trying = error_of(drop_value(with_timeout(e->here->read_some(into), 2ms)));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        byte_buffer piece(1'000'000);
        std::size_t all = 0;
        while (all < 20'000'000) {
            auto reading = e->there->read_some(piece);
            all += co_await reading;
        }
        auto joined = writing.join();
        co_await joined;
        CHECK(all == 20'000'000);
    });
}

TEST_CASE("writing to a peer that has gone is a reset") {
    in_all_worlds([](ends* e) -> task<void> {
        e->there->close();
        std::optional<error> seen;
        for (int i = 0; i < 1000 && !seen; ++i) {
            auto trying = error_of(write(e->here.get(), pattern(100'000)));
            seen = co_await trying;
            if (!seen) {
                auto pause = sleep_for(1ms);
                co_await pause;
            }
        }
        REQUIRE(seen);
        CHECK(seen->code() == errc::reset);
    });
}

TEST_CASE("a closed listener wakes its accept and refuses those who come") {
    in_all_worlds([](ends* e) -> task<void> {
        scope waiting;
        std::optional<error> seen;
        const auto accept = [](net::listener* at, std::optional<error>* out) -> task<void> {
            auto trying = error_of(drop_value(at->accept()));
            *out = co_await trying;
        };
        waiting.spawn(accept(e->at, &seen));
        auto pause = sleep_for(2ms);
        co_await pause;
        e->at->close();
        auto joined = waiting.join();
        co_await joined;
        REQUIRE(seen);
        CHECK(seen->code() == errc::closed);
    });
}

// SPDX-License-Identifier: Apache-2.0
// What is special about the simulated network; the contract of streams is in stream_test.cpp.
#include "net/support.hpp"

#include <skein/sim/host_loop.hpp>
#include <skein/sim/network.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

struct world {
    explicit world(std::uint64_t seed, sim::faults faults = {})
        : loop(seed), network(loop, faults) {}
    sim::loop loop;
    sim::network network;
    void run(task<void> (*body)(sim::network*)) {
        loop.run(body(&network));
        CHECK(network.open_streams() == 0);
    }
};

struct ends {
    std::unique_ptr<net::listener> at;
    std::unique_ptr<net::stream> a, b;
};

task<void> take_one(net::listener* at, std::unique_ptr<net::stream>* out) {
    auto accepting = at->accept();
    *out = co_await accepting;
}
task<ends> link(sim::network* w) {
    ends e;
    e.at = w->host("b").listen(net::address::sim("b", 0));
    scope accepting;
    accepting.spawn(take_one(e.at.get(), &e.b));
    auto connecting = w->host("a").connect(e.at->local());
    e.a = co_await connecting;
    auto joined = accepting.join();
    co_await joined;
    co_return e;
}
task<void> put(net::stream* s, byte_buffer bytes) {
    const byte_span part(bytes);
    auto writing = s->write_all(std::span<const byte_span>(&part, 1));
    co_await writing;
}
task<std::size_t> get(net::stream* s, std::size_t most = 1000) {
    byte_buffer into(most);
    auto reading = s->read_some(into);
    co_return co_await reading;
}

} // namespace

TEST_CASE("the same seed gives the same trace, another seed another one") {
    const auto run = [](std::uint64_t seed) {
        sim::faults faults;
        faults.partial_read = faults.partial_write = 0.5;
        faults.slow_chunk = 0.1;
        world w(seed, faults);
        w.run([](sim::network* n) -> task<void> {
            auto linking = link(n);
            ends e = co_await linking;
            scope writing;
            constexpr std::size_t many = 3'000'000; // a window is written to by a quarter or more
            writing.spawn(put(e.a.get(), pattern(many)));
            std::size_t all = 0;
            while (all < many) {
                auto reading = get(e.b.get());
                all += co_await reading;
            }
            auto joined = writing.join();
            co_await joined;
        });
        CHECK(w.network.counts().of(sim::fault::partial_read) > 0);
        CHECK(w.network.counts().of(sim::fault::partial_write) > 0);
        return w.loop.trace_hash();
    };
    CHECK(run(1) == run(1));
    CHECK(run(1) != run(2));
}

TEST_CASE("a flipped bit is one bit of one chunk, is counted, and never inside of a host") {
    sim::faults faults;
    faults.flip = 1;
    world w(9, faults);
    w.run([](sim::network* n) -> task<void> {
        auto linking = link(n);
        ends e = co_await linking;
        const auto sent = pattern(500);
        auto writing = put(e.a.get(), sent);
        co_await writing;
        byte_buffer got(500);
        std::size_t have = 0;
        while (have < 500) {
            auto reading = e.b->read_some(mut_byte_span(got).subspan(have));
            have += co_await reading;
        }
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < 500; ++i)
            for (auto x = static_cast<unsigned>(got[i] ^ sent[i]); x != 0; x &= x - 1) ++wrong;
        CHECK(wrong >= 1);
        CHECK(wrong <= n->counts().of(sim::fault::bit_flip));
        const auto before = n->counts().of(sim::fault::bit_flip);
        auto [one, other] = n->connected_pair("a", "a");
        auto inside = put(one.get(), sent);
        co_await inside;
        auto reading = other->read_some(got);
        const auto read = co_await reading;
        CHECK(read == 500);
        CHECK(got == sent);
        n->stop_faults();
        auto calm = put(e.a.get(), sent);
        co_await calm;
        CHECK(n->counts().of(sim::fault::bit_flip) == before);
    });
}

TEST_CASE("a cut link holds bytes back; they arrive in order after it heals") {
    world w(4);
    w.run([](sim::network* n) -> task<void> {
        auto linking = link(n);
        ends e = co_await linking;
        n->block("a", "b");
        for (int i = 0; i < 10; ++i) {
            auto writing = put(e.a.get(), to_buffer(fmt::format("{}", i)));
            co_await writing;
        }
        auto pause = sleep_for(5s);
        co_await pause;
        byte_buffer into(100);
        CHECK_FALSE(e.b->try_read(into).has_value());
        auto back = put(e.b.get(), to_buffer("the other way is open"));
        co_await back;
        auto reading_back = get(e.a.get());
        const auto got_back = co_await reading_back;
        CHECK(got_back == 21);
        n->heal("a", "b");
        std::string all;
        while (all.size() < 10) {
            auto reading = e.b->read_some(into);
            const auto got = co_await reading;
            all += to_string(byte_span(into).first(got));
        }
        CHECK(all == "0123456789");
    });
}

TEST_CASE("a loud crash resets the peers, a silent one tells them nothing") {
    world w(4);
    w.run([](sim::network* n) -> task<void> {
        for (const bool loudly : {true, false}) {
            auto linking = link(n);
            ends e = co_await linking;
            n->crash("b", loudly);
            auto trying = error_of(drop_value(with_timeout(get(e.a.get()), 10s)));
            const auto seen = co_await trying;
            REQUIRE(seen);
            CHECK(seen->code() == (loudly ? errc::reset : errc::timeout));
            auto here = error_of(drop_value(get(e.b.get())));
            const auto own = co_await here;
            CHECK(own->code() == errc::reset);
        }
        CHECK(n->counts().of(sim::fault::crash) == 2);
    });
}

TEST_CASE("a window bounds what is under way: the writer waits for the reader") {
    sim::faults faults;
    faults.window = 1000;
    world w(4, faults);
    w.run([](sim::network* n) -> task<void> {
        auto linking = link(n);
        ends e = co_await linking;
        auto trying = error_of(with_timeout(put(e.a.get(), pattern(1001)), 10s));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        auto reading = get(e.b.get());
        const auto got = co_await reading;
        CHECK(got == 1000);
    });
}

TEST_CASE("connecting to a host behind a cut times out, to a closed port is refused at once") {
    world w(4);
    w.run([](sim::network* n) -> task<void> {
        auto at = n->host("b").listen(net::address::sim("b", 5));
        n->partition("a", "b");
        auto cut = error_of(drop_value(n->host("a").connect(at->local())));
        const auto slow = co_await cut;
        CHECK(slow->code() == errc::timeout);
        n->heal_all();
        auto wrong = error_of(drop_value(n->host("a").connect(net::address::sim("b", 6))));
        const auto fast = co_await wrong;
        CHECK(fast->code() == errc::refused);
    });
}

TEST_CASE("ports and paths in use are refused, also in simulation; tcp addresses name hosts") {
    world w(4);
    w.run([](sim::network* n) -> task<void> {
        auto first = n->host("b").listen(net::address::tcp("0.0.0.0", 5));
        CHECK(to_string(first->local()) == "tcp:b:5");
        CHECK_THROWS_AS(n->host("b").listen(net::address::sim("b", 5)), error);
        auto path = n->host("b").listen(net::address::unix_socket("/s"));
        CHECK_THROWS_AS(n->host("b").listen(net::address::unix_socket("/s")), error);
        auto elsewhere = n->host("c").listen(net::address::unix_socket("/s"));
        auto connecting = n->host("a").connect(net::address::tcp("b", 5));
        auto s = co_await connecting;
        CHECK(s->peer_name() == "sim:b");
        auto foreign = error_of(drop_value(n->host("a").connect(net::address::unix_socket("/s"))));
        const auto seen = co_await foreign;
        CHECK(seen->code() == errc::refused);
        first->close();
        auto again = n->host("b").listen(net::address::sim("b", 5));
        CHECK(again->local().port == 5);
    });
}

TEST_CASE("random link faults come and go by themselves, and stop when told") {
    sim::faults faults;
    faults.link_fault_every = 100ms;
    faults.link_fault_lasts = 50ms;
    world w(9, faults);
    w.run([](sim::network* n) -> task<void> {
        (void)n->host("a");
        (void)n->host("b");
        n->begin_link_faults();
        auto pause = sleep_for(20s);
        co_await pause;
        n->stop_faults();
        const auto before = n->counts().total();
        auto calm = sleep_for(20s);
        co_await calm;
        CHECK(before > 50);
        CHECK(n->counts().of(sim::fault::block) > 5);
        CHECK(n->counts().of(sim::fault::partition) > 5);
        CHECK(n->counts().of(sim::fault::reset) > 5);
        CHECK(n->counts().total() <= before + 1);
        CHECK_FALSE(n->is_blocked("a", "b"));
    });
}

TEST_CASE("hosts have the world's clock, or after give_clocks() each its own, and wall clocks jump "
          "until the calm") {
    sim::loop loop(11);
    sim::network one_clock(loop, sim::faults{});
    CHECK(&one_clock.loop_of("a") == &loop);
    sim::network net(loop, sim::faults{});
    net.give_clocks({.most_drift = 50'000'000, .most_ahead = 1h, .jump_every = 1s});
    auto& a = net.loop_of("a");
    auto& b = net.loop_of("b");
    CHECK(&a != &loop);
    CHECK(&a != &b);
    CHECK(&net.loop_of("a") == &a);
    CHECK(net.counts().of(sim::fault::drift) == 2);
    const auto gap = [&] { return a.exact_now() - b.exact_now(); };
    const auto body = [](sim::network* n, auto gap_now) -> task<void> {
        const auto before = gap_now();
        auto pause = sleep_for(100s);
        co_await pause;
        CHECK(gap_now() != before);
        const auto jumps = n->counts().of(sim::fault::clock_jump);
        CHECK(jumps > 30);
        n->stop_faults();
        auto calm = sleep_for(100s);
        co_await calm;
        CHECK(n->counts().of(sim::fault::clock_jump) == jumps);
    };
    loop.run(body(&net, gap));
}

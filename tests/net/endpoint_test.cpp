// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/log.hpp>
#include <skein/net/endpoint.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

task<void> echo(net::connection::handle c) {
    for (;;) {
        auto receiving = c->receive();
        auto f = co_await receiving;
        if (!f) co_return;
        if (f->kind == 9) throw error(errc::io, "asked to fail");
        c->send(std::move(*f));
    }
}

task<bool> ask(net::network* via, net::address to, net::connection_options o,
               std::uint16_t kind = 1) {
    auto connecting = net::connection::connect(*via, to, o);
    auto c = co_await connecting;
    c->send(kind, 0, 77, pattern(100));
    std::optional<net::frame> f;
    try {
        auto receiving = c->receive();
        f = co_await receiving;
    } catch (const error&) {}
    auto closing = c->close();
    co_await closing;
    co_return f && f->id == 77 && f->body == pattern(100);
}

/// Log lines of this test instead of standard error.
struct quiet {
    quiet() {
        logging::set_sink([this](const logging::record& r) {
            lines += logging::format_text(r);
            lines += '\n';
        });
    }
    ~quiet() { logging::set_sink(nullptr); }
    std::string lines;
};

} // namespace

TEST_CASE("an endpoint serves many clients and ends when it is closed") {
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        net::endpoint server(network, net::address::tcp("127.0.0.1", 0), options("server"));
        scope serving;
        serving.spawn(server.serve(&echo));
        for (int i = 0; i < 5; ++i) {
            auto asking = ask(&network, server.local(), options());
            const bool good = co_await asking;
            CHECK(good);
        }
        server.close();
        auto joined = serving.join();
        co_await joined;
        CHECK(server.accepted() == 5);
        CHECK(server.refused() == 0);
    };
    run_real<void>(body);
}

TEST_CASE("a wrong token or foreign bytes are logged and harm nobody else") {
    quiet log_lines;
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        net::endpoint server(network, net::address::tcp("127.0.0.1", 0), options("server"));
        scope serving;
        serving.spawn(server.serve(&echo));
        auto wrong = error_of(drop_value(ask(&network, server.local(), options("thief", '9'))));
        const auto refused = co_await wrong;
        REQUIRE(refused);
        CHECK(refused->code() == errc::permission_denied);
        {
            auto connecting = network.connect(server.local());
            auto s = co_await connecting;
            const auto http = to_buffer("GET / HTTP/1.0\r\n\r\n");
            const byte_span part(http);
            auto writing = s->write_all(std::span<const byte_span>(&part, 1));
            co_await writing;
            byte_buffer none(10);
            auto reading = error_of(drop_value(s->read_some(none)));
            (void)co_await reading;
        }
        auto asking = ask(&network, server.local(), options());
        const bool good = co_await asking;
        CHECK(good);
        server.close();
        auto joined = serving.join();
        co_await joined;
        CHECK(server.refused() == 2);
        CHECK(server.accepted() == 1);
    };
    run_real<void>(body);
    CHECK(log_lines.lines.find("looks like HTTP") != std::string::npos);
    CHECK(log_lines.lines.find("same token") != std::string::npos);
}

TEST_CASE("a failing handler ends its own connection only") {
    quiet log_lines;
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        net::endpoint server(network, fresh_unix(), options("server"));
        scope serving;
        serving.spawn(server.serve(&echo));
        auto failing = ask(&network, server.local(), options(), 9);
        const bool bad = co_await failing;
        CHECK_FALSE(bad);
        auto asking = ask(&network, server.local(), options());
        const bool good = co_await asking;
        CHECK(good);
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
    };
    run_real<void>(body);
    CHECK(log_lines.lines.find("asked to fail") != std::string::npos);
}

TEST_CASE("cancelling an endpoint ends its connections") {
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        net::endpoint server(network, fresh_unix(), options("server"));
        scope serving;
        serving.spawn(server.serve(&echo));
        auto connecting = net::connection::connect(network, server.local(), options());
        auto c = co_await connecting;
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
        auto ended = c->wait_closed();
        co_await ended;
        auto closing = c->close();
        co_await closing;
        CHECK(c->failure());
    };
    run_real<void>(body);
}

TEST_CASE("an address that others can reach needs a token") {
    net::real_loop loop;
    net::real_network network(loop);
    auto o = options();
    o.secret = net::token();
    std::optional<error> seen;
    try {
        net::endpoint open_door(network, net::address::tcp("0.0.0.0", 0), o);
    } catch (const error& e) {
        seen = e;
    }
    REQUIRE(seen);
    CHECK(seen->code() == errc::permission_denied);
    CHECK(seen->hint().find("127.0.0.1") != std::string::npos);
    net::endpoint closed_door(network, net::address::tcp("0.0.0.0", 0), options());
    CHECK(closed_door.local().port != 0);
}

TEST_CASE("no more handshakes at a time than allowed") {
    const auto body = [](sim::network* w) -> task<void> {
        net::endpoint_limits few;
        few.concurrent_handshakes = 2;
        auto o = options("server");
        o.bounds.handshake_deadline = 1s;
        net::endpoint server(w->host("s"), net::address::sim("s", 1), o, few);
        scope serving;
        serving.spawn(server.serve(&echo));
        // Six silent clients keep the two places for a second each; an honest one comes after them.
        std::vector<std::unique_ptr<net::stream>> silent;
        for (int i = 0; i < 6; ++i) {
            auto connecting = w->host("c").connect(server.local());
            silent.push_back(co_await connecting);
        }
        const auto begin = loop::current().now();
        auto mine = options();
        mine.bounds.handshake_deadline = 60s;
        auto asking = ask(&w->host("c"), server.local(), mine);
        const bool good = co_await asking;
        CHECK(good);
        const auto took = loop::current().now() - begin;
        CHECK(took > 2s);
        CHECK(took < 4s);
        CHECK(server.refused() >= 5);
        silent.clear();
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
    };
    quiet log_lines;
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
}

TEST_CASE("patience: refused again and again, then the error tells tries, time and cause") {
    const auto body = [](sim::network* w) -> task<void> {
        net::reconnect_policy policy;
        policy.max_tries = 5;
        auto trying = error_of(drop_value(net::connect_patiently(
            w->host("a"), net::address::sim("b", 1), options(), policy, w->loop().random())));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::refused);
        CHECK(seen->text().starts_with("connect sim:b:1 failed after 5 tries ("));
        CHECK(seen->cause().find("is the program there running?") != std::string::npos);
    };
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
    // 50 + 100 + 200 + 400 ms, each less up to half.
    CHECK(loop.elapsed() > 375ms);
    CHECK(loop.elapsed() < 760ms);
}

TEST_CASE("patience: a server that comes late is found, a wrong token is not tried again") {
    const auto body = [](sim::network* w) -> task<void> {
        scope serving;
        const auto late = [](sim::network* n) -> task<void> {
            auto pause = sleep_for(300ms);
            co_await pause;
            net::endpoint server(n->host("b"), net::address::sim("b", 1), options("server"));
            auto running = server.serve(&echo);
            co_await running;
        };
        serving.spawn(late(w));
        auto connecting = net::connect_patiently(w->host("a"), net::address::sim("b", 1), options(),
                                                 {}, w->loop().random());
        auto c = co_await connecting;
        CHECK(c->peer().name == "server");
        auto closing = c->close();
        co_await closing;
        auto thief = error_of(
            drop_value(net::connect_patiently(w->host("a"), net::address::sim("b", 1),
                                              options("thief", '8'), {}, w->loop().random())));
        const auto seen = co_await thief;
        REQUIRE(seen);
        CHECK(seen->code() == errc::permission_denied);
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
    };
    quiet log_lines;
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
}

TEST_CASE("delays grow to their bound and are spread") {
    net::reconnect_policy p;
    seeded_random random(1);
    CHECK(p.delay(1, random) <= 50ms);
    CHECK(p.delay(1, random) >= 25ms);
    CHECK(p.delay(30, random) <= 2s);
    CHECK(p.delay(30, random) >= 1s);
    CHECK(p.delay(3, random) != p.delay(3, random));
}

TEST_CASE("a handler that fails with any error ends its own connection only") {
    quiet log_lines;
    const auto body = [](sim::network* w) -> task<void> {
        // What an error of a remote call may carry, and what is not even a std::exception.
        const auto fail = [](net::connection::handle c) -> task<void> {
            auto receiving = c->receive();
            auto f = co_await receiving;
            if (f && f->kind == 2) throw error(errc::cancelled, "the call was cancelled there");
            if (f && f->kind == 3) throw 7;
            c->send(std::move(*f));
            auto ended = c->wait_closed();
            co_await ended;
        };
        net::endpoint server(w->host("s"), net::address::sim("s", 1), options("server"));
        scope serving;
        serving.spawn(server.serve(fail));
        for (const std::uint16_t kind : {2, 3, 1}) {
            auto asking = ask(&w->host("c"), server.local(), options(), kind);
            const bool good = co_await asking;
            CHECK(good == (kind == 1));
        }
        CHECK(server.accepted() == 3);
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
    };
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
    CHECK(log_lines.lines.find("the call was cancelled there") != std::string::npos);
}

namespace {
/// A network whose listeners fail a few times before they accept.
class shaky_network final : public net::network {
public:
    explicit shaky_network(net::network& inner) : inner_(inner) {}
    task<std::unique_ptr<net::stream>> connect(net::address to) override {
        return inner_.connect(std::move(to));
    }
    std::unique_ptr<net::listener> listen(net::address at) override {
        return std::make_unique<shaky_listener>(inner_.listen(std::move(at)));
    }

private:
    class shaky_listener final : public net::listener {
    public:
        explicit shaky_listener(std::unique_ptr<net::listener> inner) : inner_(std::move(inner)) {}
        task<std::unique_ptr<net::stream>> accept() override {
            constexpr errc faults[] = {errc::io, errc::refused, errc::permission_denied,
                                       errc::cancelled};
            if (failed_ < std::size(faults)) throw error(faults[failed_++], "accept failed");
            auto accepting = inner_->accept();
            auto next = co_await accepting;
            co_return next;
        }
        net::address local() const override { return inner_->local(); }
        void close() noexcept override { inner_->close(); }

    private:
        std::unique_ptr<net::listener> inner_;
        std::size_t failed_ = 0;
    };
    net::network& inner_;
};
} // namespace

TEST_CASE("an endpoint gets over errors of accept that pass") {
    quiet log_lines;
    const auto body = [](sim::network* w) -> task<void> {
        shaky_network shaky(w->host("s"));
        net::endpoint server(shaky, net::address::sim("s", 1), options("server"));
        scope serving;
        serving.spawn(server.serve(&echo));
        auto asking = ask(&w->host("c"), server.local(), options());
        const bool good = co_await asking;
        CHECK(good);
        server.close();
        auto joined = serving.join();
        co_await joined;
    };
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
    CHECK(loop.elapsed() >= 400ms);
}

TEST_CASE("patience under simulation draws from the seed") {
    const auto took = [](std::uint64_t seed) {
        const auto body = [](sim::network* w) -> task<void> {
            auto trying = error_of(drop_value(
                net::connect_patiently(w->host("a"), net::address::sim("b", 1), options())));
            (void)co_await trying;
        };
        sim::loop loop(seed);
        sim::network network(loop, sim::faults());
        loop.run(body(&network));
        return loop.elapsed();
    };
    CHECK(took(5) == took(5));
    CHECK(took(5) != took(6));
}

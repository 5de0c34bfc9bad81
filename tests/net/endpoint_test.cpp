// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/log.hpp>
#include <skein/net/endpoint.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

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

TEST_CASE("silent strangers in all places do not keep a client out") {
    const auto body = [](sim::network* w) -> task<void> {
        net::acceptor_options few;
        few.places = 2;
        net::endpoint server(w->host("s"), net::address::sim("s", 1), options("server"), few);
        scope serving;
        serving.spawn(server.serve(&echo));
        std::vector<std::unique_ptr<net::stream>> silent;
        for (int i = 0; i < 6; ++i) {
            auto connecting = w->host("c").connect(server.local());
            silent.push_back(co_await connecting);
        }
        const auto begin = loop::current().now();
        auto asking = ask(&w->host("c"), server.local(), options());
        const bool good = co_await asking;
        CHECK(good);
        CHECK(loop::current().now() - begin < 500ms);
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

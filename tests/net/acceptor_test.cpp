// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/log.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/dial.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

using namespace net_test;

namespace {

/// Shakes hands, then keeps the stream until the peer closes it.
task<void> greet(std::unique_ptr<net::stream> s, net::admission* place) {
    auto greeting = net::authenticate(*s, net::side::accepting, options("server"), {}, place);
    (void)co_await greeting;
    place->authenticated();
    byte_buffer into(16);
    auto reading = s->read_some(into);
    (void)co_await reading;
}

task<std::unique_ptr<net::stream>> knock(net::network* via, net::address to) {
    auto connecting = via->connect(std::move(to));
    auto s = co_await connecting;
    co_return s;
}

task<bool> is_served(net::network* via, net::address to, const char* name = "client") {
    try {
        auto dialing = net::dial_patiently(*via, std::move(to), options(name));
        const auto made = co_await dialing;
        co_return made.peer.name == "server";
    } catch (const error&) {
        co_return false;
    }
}

template <class Body>
void in_sim(Body body) {
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
}

/// A listener that gives out what it is told: streams of another user, or errors.
class scripted_listener final : public net::listener {
public:
    scripted_listener(std::unique_ptr<net::listener> inner, std::vector<errc> failures)
        : inner_(std::move(inner)), failures_(std::move(failures)) {}
    task<std::unique_ptr<net::stream>> accept() override {
        if (failed_ < failures_.size()) throw error(failures_[failed_++], "accept failed");
        auto accepting = inner_->accept();
        auto next = co_await accepting;
        co_return next;
    }
    net::address local() const override { return inner_->local(); }
    void close() noexcept override { inner_->close(); }

private:
    std::unique_ptr<net::listener> inner_;
    std::vector<errc> failures_;
    std::size_t failed_ = 0;
};

} // namespace

TEST_CASE("an acceptor serves who authenticates, and counts who does not") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor door(w->host("s"), net::address::sim("s", 1));
        scope serving;
        serving.spawn(door.serve(&greet));
        auto asking = is_served(&w->host("a"), door.local());
        const bool good = co_await asking;
        CHECK(good);
        auto thief =
            error_of(drop_value(net::dial(w->host("a"), door.local(), options("thief", '9'))));
        const auto seen = co_await thief;
        REQUIRE(seen);
        CHECK(seen->code() == errc::permission_denied);
        auto pause = sleep_for(100ms);
        co_await pause;
        CHECK(door.authenticated() == 1);
        CHECK(door.refused() == 1);
        CHECK(door.waiting() == 0);
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
    CHECK(log.with("connection refused") == 1);
}

TEST_CASE("eighty idle connections, reopened when they are dropped, keep nobody out") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor door(w->host("s"), net::address::sim("s", 1));
        scope serving, strangers;
        serving.spawn(door.serve(&greet));
        const auto pest = [](net::network* via, net::address to) -> task<void> {
            for (;;) {
                auto knocking = knock(via, to);
                auto s = co_await knocking;
                byte_buffer into(1);
                auto dropped = error_of(drop_value(s->read_some(into)));
                const auto why = co_await dropped;
                if (why && why->code() == errc::cancelled) throw *why;
            }
        };
        for (int i = 0; i < 80; ++i) strangers.spawn(pest(&w->host("pest"), door.local()));
        auto settle = sleep_for(1s);
        co_await settle;
        CHECK(door.waiting() <= 33);
        const auto begin = loop::current().now();
        for (const char* host : {"a", "b", "pest"}) { // from the strangers' own host, too
            auto asking = is_served(&w->host(host), door.local());
            const bool good = co_await asking;
            CHECK(good);
        }
        CHECK(loop::current().now() - begin < 2s);
        strangers.cancel();
        auto gone = strangers.join();
        co_await gone;
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
    // One line a kind and ten seconds, then their number.
    CHECK(log.with("connection refused") <= 4);
    CHECK(log.with("more_since=") >= 1);
}

TEST_CASE("a storm of honest clients from one host is served whole") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor door(w->host("s"), net::address::sim("s", 1));
        scope serving, clients;
        serving.spawn(door.serve(&greet));
        const auto client = [](net::network* via, net::address to, int* good) -> task<void> {
            auto asking = is_served(via, std::move(to));
            *good += co_await asking ? 1 : 0;
        };
        int good = 0;
        for (int i = 0; i < 300; ++i) clients.spawn(client(&w->host("c"), door.local(), &good));
        auto all = clients.join();
        co_await all;
        CHECK(good == 300);
        CHECK(door.refused() == 0);
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
}

TEST_CASE("who says nothing is dropped at the deadline, and says why in the log") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor_options o;
        o.deadline = 300ms;
        net::acceptor door(w->host("s"), net::address::sim("s", 1), o);
        scope serving;
        serving.spawn(door.serve([](std::unique_ptr<net::stream> s, net::admission*) -> task<void> {
            byte_buffer into(1);
            auto reading = s->read_some(into);
            (void)co_await reading;
        }));
        auto knocking = knock(&w->host("a"), door.local());
        auto s = co_await knocking;
        const auto begin = loop::current().now();
        byte_buffer into(1);
        auto reading = s->read_some(into);
        const auto got = co_await reading;
        CHECK(got == 0);
        CHECK(loop::current().now() - begin > 250ms);
        CHECK(loop::current().now() - begin < 400ms);
        CHECK(door.waiting() == 0);
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
    CHECK(log.with("did not prove who it is in time") == 1);
}

TEST_CASE("a door that is closed ends those that have proven nothing, and those alone") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor_options o;
        o.deadline = 1h;
        net::acceptor door(w->host("s"), net::address::sim("s", 1), o);
        scope serving;
        serving.spawn(door.serve(&greet));
        auto knocking = knock(&w->host("a"), door.local());
        auto silent = co_await knocking;
        auto knocking_too = knock(&w->host("b"), door.local());
        auto half = co_await knocking_too; // its first message never becomes whole
        const byte_buffer begun = to_buffer(as_bytes("skein\r\n"));
        auto greeting = net::detail::write_one(half.get(), begun);
        co_await greeting;
        auto dialing = net::dial_patiently(w->host("c"), door.local(), options("client"));
        auto known = co_await dialing;
        REQUIRE(door.waiting() == 2);
        const auto closed_at = loop::current().now();
        door.close();
        byte_buffer into(1);
        for (auto* stranger : {silent.get(), half.get()}) {
            auto reading = stranger->read_some(into);
            const auto got = co_await reading;
            CHECK(got == 0);
        }
        CHECK(loop::current().now() - closed_at < 1s);
        CHECK(door.waiting() == 0);
        const byte_buffer one(1, std::byte{1}); // the handler of who is known still reads
        auto writing = net::detail::write_one(known.stream.get(), one);
        co_await writing;
        auto joined = with_timeout(serving.join(), 10s);
        co_await joined;
        CHECK(door.authenticated() == 1);
    });
    CHECK(log.with("connection refused") == 0); // nothing is wrong with them
}

TEST_CASE("a door that is closed while a stream waits for a place ends") {
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor_options o;
        o.places = 1;
        o.deadline = o.grace = 1h;
        net::acceptor door(w->host("s"), net::address::sim("s", 1), o);
        scope serving;
        serving.spawn(door.serve(&greet));
        auto knocking = knock(&w->host("a"), door.local());
        auto first = co_await knocking;
        auto knocking_too = knock(&w->host("b"), door.local());
        auto second = co_await knocking_too;
        auto settle = sleep_for(100ms);
        co_await settle;
        door.close();
        auto joined = with_timeout(serving.join(), 10s);
        co_await joined;
    });
}

TEST_CASE("a handler may look at the first bytes before it shakes hands") {
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor door(w->host("s"), net::address::sim("s", 1));
        scope serving;
        // Both protocols on one address: a line of text is answered, anything else shakes hands.
        const auto both = [](std::unique_ptr<net::stream> s, net::admission* place) -> task<void> {
            byte_buffer first(4);
            auto reading = s->read_some(first);
            first.resize(co_await reading);
            if (as_text(first).starts_with("GET")) {
                place->authenticated();
                const auto answer = to_buffer("hello");
                const byte_span part(answer);
                auto writing = s->write_all(std::span<const byte_span>(&part, 1));
                co_await writing;
                co_return;
            }
            auto greeting =
                net::connection::accept(std::move(s), options("server"), std::move(first));
            auto c = co_await greeting;
            place->authenticated();
            auto closing = c->close();
            co_await closing;
        };
        serving.spawn(door.serve(both));
        auto connecting = net::connection::connect(w->host("a"), door.local(), options());
        auto c = co_await connecting;
        CHECK(c->peer().name == "server");
        auto closing = c->close();
        co_await closing;
        auto knocking = knock(&w->host("a"), door.local());
        auto s = co_await knocking;
        const auto request = to_buffer("GET / HTTP/1.1");
        const byte_span part(request);
        auto writing = s->write_all(std::span<const byte_span>(&part, 1));
        co_await writing;
        byte_buffer into(5);
        auto reading = s->read_some(into);
        const auto got = co_await reading;
        CHECK(as_text(byte_span(into).first(got)) == std::string_view("hello").substr(0, got));
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
}

TEST_CASE("an accept that fails is tried again, whatever the system lacks") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        auto listener = std::make_unique<scripted_listener>(
            w->host("s").listen(net::address::sim("s", 1)),
            std::vector<errc>{errc::exhausted, errc::exhausted, errc::exhausted, errc::reset,
                              errc::permission_denied, errc::io});
        net::acceptor door(std::move(listener));
        scope serving;
        serving.spawn(door.serve(&greet));
        auto asking = is_served(&w->host("a"), door.local());
        const bool good = co_await asking;
        CHECK(good);
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
    CHECK(log.with("accept failed") == 4 + 1); // a line a kind, and the number of the rest
}

TEST_CASE("a listener that cannot work ends the acceptor with its error") {
    in_sim([](sim::network* w) -> task<void> {
        auto listener =
            std::make_unique<scripted_listener>(w->host("s").listen(net::address::sim("s", 1)),
                                                std::vector<errc>{errc::invalid_argument});
        net::acceptor door(std::move(listener));
        auto serving = error_of(door.serve(&greet));
        const auto why = co_await serving;
        REQUIRE(why);
        CHECK(why->code() == errc::invalid_argument);
    });
}

TEST_CASE("without free descriptors a stranger gives his up and the next client is served") {
    quiet log;
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        net::acceptor door(network, net::address::tcp("127.0.0.1", 0));
        scope serving;
        serving.spawn(door.serve(&greet));
        // Connections whose other ends the kernel holds, then no descriptor left.
        std::vector<std::unique_ptr<net::stream>> strangers;
        for (int i = 0; i < 10; ++i) {
            auto knocking = knock(&network, door.local());
            strangers.push_back(co_await knocking);
        }
        while (door.waiting() < 10) {
            auto settle = sleep_for(1ms);
            co_await settle;
        }
        auto knocking = knock(&network, door.local());
        auto last = co_await knocking;
        const int lowest = ::dup(0);
        ::close(lowest);
        rlimit tight{};
        ::getrlimit(RLIMIT_NOFILE, &tight);
        tight.rlim_cur = static_cast<rlim_t>(lowest);
        CHECK(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
        auto greeting = net::authenticate(*last, net::side::connecting, options());
        const auto peer = co_await greeting;
        CHECK(peer.name == "server");
        strangers.clear();
        last.reset();
        door.close();
        auto joined = serving.join();
        co_await joined;
    };
    run_real<void>(body);
    CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("who has said hello keeps his place before those who have said nothing") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor_options few;
        few.places = few.places_per_address = 4;
        net::acceptor door(w->host("s"), net::address::sim("s", 1), few);
        scope serving, strangers;
        serving.spawn(door.serve(&greet));
        auto knocking = knock(&w->host("a"), door.local());
        auto slow = co_await knocking; // says hello, and proves nothing for a while
        net::detail::hello hello;
        hello.fill(net::side::connecting, net::protocol_version, loop::current().random());
        auto saying = net::detail::write_one(slow.get(), hello.raw);
        co_await saying;
        const auto silent = [](net::network* via, net::address to) -> task<void> {
            for (;;) {
                auto coming = knock(via, to);
                const auto s = co_await coming;
                auto pause = sleep_for(5ms);
                co_await pause;
            }
        };
        for (int i = 0; i < 20; ++i) strangers.spawn(silent(&w->host("a"), door.local()));
        byte_buffer answer(net::hello_bytes + net::detail::sealed_proof_bytes);
        auto reading = net::detail::read_exactly(slow.get(), answer);
        co_await reading;
        byte_buffer more(1);
        auto end = error_of(drop_value(with_timeout(slow->read_some(more), 80ms)));
        const auto seen = co_await end;
        REQUIRE(seen); // it was not closed
        CHECK(seen->code() == errc::timeout);
        CHECK(door.refused() > 20);
        strangers.cancel();
        auto gone = strangers.join();
        co_await gone;
        slow.reset();
        door.close();
        auto joined = serving.join();
        co_await joined;
    });
}

TEST_CASE("strangers get a quarter of a process's descriptors, however many places there are") {
    quiet log;
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit tight = before;
    tight.rlim_cur = 400;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        net::acceptor_options many;
        many.places = many.places_per_address = 4096;
        net::acceptor door(network, net::address::tcp("127.0.0.1", 0), many);
        scope serving;
        serving.spawn(door.serve(&greet));
        std::vector<std::unique_ptr<net::stream>> strangers;
        std::size_t most = 0;
        for (int i = 0; i < 150; ++i) {
            auto knocking = knock(&network, door.local());
            strangers.push_back(co_await knocking);
            most = std::max(most, door.waiting());
        }
        auto asking = is_served(&network, door.local());
        const bool good = co_await asking;
        CHECK(good);
        CHECK(std::max(most, door.waiting()) <= 100);
        strangers.clear();
        door.close();
        auto joined = serving.join();
        co_await joined;
    };
    run_real<void>(body);
    CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a process of another user is dropped at once on a Unix socket") {
    if (::geteuid() != 0) SKIP("needs two users: run as root");
    quiet log;
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        const auto at = fresh_unix();
        net::acceptor door(network, at);
        scope serving;
        serving.spawn(door.serve(&greet));
        const pid_t child = ::fork();
        if (child == 0) {
            if (::setuid(65534) != 0) ::_exit(2);
            const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
            sockaddr_un name{};
            name.sun_family = AF_UNIX;
            std::copy(at.host.begin() + 1, at.host.end(), name.sun_path + 1);
            const auto size =
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + at.host.size());
            if (::connect(fd, reinterpret_cast<sockaddr*>(&name), size) != 0) ::_exit(3);
            char byte = 0; // until we are dropped
            ::_exit(::read(fd, &byte, 1) <= 0 ? 0 : 4);
        }
        while (door.refused() == 0) {
            auto settle = sleep_for(1ms);
            co_await settle;
        }
        CHECK(door.waiting() == 0);
        int status = -1;
        ::waitpid(child, &status, 0);
        CHECK(status == 0);
        auto asking = is_served(&network, at);
        const bool good = co_await asking;
        CHECK(good);
        door.close();
        auto joined = serving.join();
        co_await joined;
    };
    run_real<void>(body);
    CHECK(log.with("it is a process of user 65534") == 1);
}

TEST_CASE("strangers of one IPv6 network share their places, as a mapped IPv4 address does") {
    CHECK(net::detail::share_of("2001:db8::1") == net::detail::share_of("2001:db8::ffff:2"));
    CHECK(net::detail::share_of("2001:db8::1") != net::detail::share_of("2001:db8:0:1::1"));
    CHECK(net::detail::share_of("::ffff:10.0.0.3") == "10.0.0.3");
    CHECK(net::detail::share_of("10.0.0.3") == "10.0.0.3");
}

TEST_CASE("cancelling an acceptor cancels its handlers") {
    quiet log;
    in_sim([](sim::network* w) -> task<void> {
        net::acceptor door(w->host("s"), net::address::sim("s", 1));
        scope serving;
        serving.spawn(door.serve(&greet));
        auto dialing = net::dial(w->host("a"), door.local(), options());
        auto made = co_await dialing;
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
        byte_buffer into(1);
        auto reading = made.stream->read_some(into);
        const auto got = co_await reading;
        CHECK(got == 0);
    });
}

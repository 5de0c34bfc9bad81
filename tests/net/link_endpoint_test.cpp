// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/detail/link_hello.hpp>
#include <skein/net/link_endpoint.hpp>

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <vector>

using namespace net_test;

namespace {

/// Runs `work(network, server, links)` beside a server of links at "b".
using table_body =
    std::function<task<void>(sim::network&, net::link_endpoint&, std::vector<net::link::handle>&)>;

task<void> hold_link(std::vector<net::link::handle>* all, net::link::handle l) {
    all->push_back(l);
    auto ended = l->wait_closed();
    l.reset();
    co_await ended;
}

task<void> beside_server(sim::network* network, net::link_options how,
                         net::link_table_bounds bounds, table_body work) {
    net::link_endpoint server(network->host("b"), net::address::sim("b", 1), options("server"), how,
                              bounds);
    std::vector<net::link::handle> links;
    scope serving;
    serving.spawn(
        server.serve([&](net::link::handle l) { return hold_link(&links, std::move(l)); }));
    auto running = error_of(with_timeout(work(*network, server, links), 100s));
    const auto fault = co_await running;
    links.clear();
    server.close();
    if (fault) serving.cancel();
    auto ended = with_timeout(serving.join(), 100s);
    co_await ended;
    if (fault) throw *fault;
}

void with_server(table_body work, net::link_options how = {}, net::link_table_bounds bounds = {}) {
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    loop.run(beside_server(&network, how, bounds, std::move(work)));
    CHECK(network.open_streams() == 0);
}

/// Says a hello by hand and gives the answer.
task<net::detail::link_answer> greet(sim::network* network, const char* name,
                                     net::detail::link_hello h) {
    auto dialing =
        net::connection::connect(network->host("a"), net::address::sim("b", 1), options(name));
    auto c = co_await dialing;
    c->send(net::detail::link_hello_kind, 0, 0, wire::encode(h));
    auto next = c->receive();
    const auto f = co_await next;
    REQUIRE(f);
    auto answer = net::detail::read_greeting<net::detail::link_answer>(*f);
    REQUIRE(answer);
    c->abort(error(errc::closed, "enough"));
    co_return *answer;
}

net::detail::link_hello hello_of(std::uint64_t from, std::uint64_t number,
                                 std::uint64_t generation) {
    net::detail::link_hello h;
    h.from = from;
    h.number = number;
    h.generation = generation;
    h.window_messages = 100;
    h.window_bytes = 10000;
    return h;
}

using net::detail::link_verdict;

link_verdict verdict_of(const net::detail::link_answer& a) {
    return static_cast<link_verdict>(a.verdict);
}

task<net::link::handle> link_from(sim::network* network, const char* host,
                                  net::link_options how = {}) {
    auto dialing =
        net::link::connect(network->host(host), net::address::sim("b", 1), options(host), how);
    auto l = co_await dialing;
    co_return l;
}

} // namespace

TEST_CASE("a hello of an older generation is refused, whoever brings it") {
    with_server([](sim::network& network, net::link_endpoint& server,
                   std::vector<net::link::handle>& links) -> task<void> {
        auto first = greet(&network, "x", hello_of(7, 1, 5));
        auto a = co_await first;
        CHECK(verdict_of(a) == link_verdict::good);
        CHECK(a.incarnation == server.table().incarnation());
        auto same = greet(&network, "x", hello_of(7, 1, 5));
        a = co_await same;
        CHECK(verdict_of(a) == link_verdict::stale);
        CHECK(a.generation == 5);
        auto older = greet(&network, "x", hello_of(7, 1, 4));
        a = co_await older;
        CHECK(verdict_of(a) == link_verdict::stale);
        auto newer = greet(&network, "x", hello_of(7, 1, 6));
        a = co_await newer;
        CHECK(verdict_of(a) == link_verdict::good);
        CHECK(links.size() == 1);
        CHECK(server.table().refused() == 2);
        CHECK(server.table().resumed() == 1);
        auto gone = links.at(0)->wait_closed(); // nobody comes back
        co_await gone;
        CHECK(links.at(0)->ending() == net::link_end::deadline);
        CHECK(server.table().links() == 0);
        auto late = greet(&network, "x", hello_of(7, 1, 9));
        a = co_await late;
        CHECK(verdict_of(a) == link_verdict::ended);
        CHECK(a.why.find("did not come back") != std::string::npos);
    });
}

TEST_CASE("a hello that contradicts what is known is refused, and the link goes on") {
    with_server([](sim::network& network, net::link_endpoint&,
                   std::vector<net::link::handle>& links) -> task<void> {
        auto dialing = link_from(&network, "a");
        auto l = co_await dialing;
        const auto there = links.at(0);
        auto h = hello_of(l->incarnation(), 1, 2);
        h.to = 12345;
        auto other = greet(&network, "a", h);
        auto a = co_await other;
        CHECK(verdict_of(a) == link_verdict::restarted);
        h.to = 0;
        h.fresh = false;
        auto unknown = greet(&network, "a", h);
        a = co_await unknown;
        CHECK(verdict_of(a) == link_verdict::forgotten);
        h.fresh = true;
        h.received = 3;
        auto impossible = greet(&network, "a", h);
        a = co_await impossible;
        CHECK(verdict_of(a) == link_verdict::not_allowed);

        auto known = greet(&network, "x", hello_of(7, 1, 1));
        a = co_await known;
        auto stolen = greet(&network, "y", hello_of(7, 1, 2)); // the link of another name
        a = co_await stolen;
        CHECK(verdict_of(a) == link_verdict::not_allowed);
        h = hello_of(7, 1, 2);
        h.received = 1; // nothing was ever sent
        auto too_many = greet(&network, "x", h);
        a = co_await too_many;
        CHECK(verdict_of(a) == link_verdict::not_allowed);
        CHECK(l->is_connected());
        auto closing = l->close();
        co_await closing;
        CHECK(l->ending() == net::link_end::orderly);
    });
}

TEST_CASE("links and links that wait for their peers are bounded") {
    net::link_table_bounds bounds;
    bounds.most_links = 3;
    bounds.most_waiting = 1;
    with_server(
        [](sim::network& network, net::link_endpoint& server,
           std::vector<net::link::handle>& links) -> task<void> {
            std::vector<net::link::handle> mine;
            for (const char* host : {"a", "c", "d"}) {
                auto dialing = link_from(&network, host);
                mine.push_back(co_await dialing);
            }
            auto one_more = error_of(drop_value(link_from(&network, "e")));
            const auto why = co_await one_more;
            REQUIRE(why);
            CHECK(why->code() == errc::exhausted);
            network.isolate("a");
            network.isolate("c");
            auto pause =
                sleep_for(3900ms); // both connections are given up, a's first or in one turn
            co_await pause;
            CHECK(server.table().waiting() <= 1);
            int given_up = 0;
            for (const auto& l : links) {
                given_up += l->failure() && l->failure()->code() == errc::exhausted;
            }
            CHECK(given_up == 1);
            CHECK(links.at(2)->is_connected());
            network.heal_all();
            for (auto& l : mine) {
                auto closing = l->close();
                co_await closing;
            }
        },
        {}, bounds);
}

TEST_CASE("a peer that does not speak in links is refused with a line that says so") {
    quiet log;
    with_server([](sim::network& network, net::link_endpoint&,
                   std::vector<net::link::handle>& links) -> task<void> {
        auto dialing =
            net::connection::connect(network.host("a"), net::address::sim("b", 1), options("a"));
        auto c = co_await dialing;
        c->send(1, 0, 0, pattern(4));
        auto ended = c->wait_closed();
        co_await ended;
        CHECK(links.empty());
    });
    CHECK(log.with("where a link begins") == 1);
}

TEST_CASE("a table that is gone lets its links live until their connection breaks") {
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    const auto body = [](sim::network* network) -> task<void> {
        auto listening = network->host("b").listen(net::address::sim("b", 1));
        auto table = std::make_unique<net::link_table>(options("server"));
        net::link::handle there, here;
        const auto accept = [](net::listener* at, net::link_table* table,
                               net::link::handle* out) -> task<void> {
            auto accepting = at->accept();
            auto s = co_await accepting;
            auto greeting = net::connection::accept(std::move(s), options("server"));
            auto c = co_await greeting;
            auto admitting = table->admit(std::move(c));
            *out = co_await admitting;
        };
        scope accepting;
        accepting.spawn(accept(listening.get(), table.get(), &there));
        auto dialing = link_from(network, "a");
        here = co_await dialing;
        auto joined = accepting.join();
        co_await joined;
        REQUIRE(there);
        table.reset();
        here->send(1, 0, 5, pattern(3));
        auto next = there->receive();
        const auto f = co_await next;
        CHECK(f->id == 5);
        network->reset("a", "b");
        auto ended = there->wait_closed();
        co_await ended;
        CHECK(there->ending() == net::link_end::broken);
        here->abort(error(errc::closed, "enough"));
        auto closing = here->close();
        co_await closing;
    };
    loop.run(body(&network));
    CHECK(network.open_streams() == 0);
}

// --- one door for peers and HTTP --------------------------------------------------------------

namespace {

/// Who takes HTTP: keeps the first bytes, answers with one line.
struct web {
    std::vector<std::string> firsts;

    static task<void> take(web* self, std::unique_ptr<net::stream> s, byte_buffer first,
                           net::admission* place) {
        self->firsts.push_back(to_string(byte_span(first)));
        place->authenticated();
        if (first.size() >= 5 && as_text(first).substr(0, 5) == "PUT /")
            throw error(errc::io, "asked to fail");
        while (as_text(first).find("\r\n\r\n") == std::string_view::npos) {
            byte_buffer more(256);
            auto reading = s->read_some(more);
            const auto n = co_await reading;
            append(first, byte_span(more).first(n));
        }
        const byte_span answer = as_bytes("HTTP/1.1 204 No Content\r\n\r\n");
        auto writing = s->write_all({&answer, 1});
        co_await writing;
    }
};

/// Sends pieces with a pause in between, and gives what comes back until the end.
task<std::string> say(sim::network* network, std::vector<std::string> pieces) {
    auto connecting = network->host("a").connect(net::address::sim("b", 1));
    auto s = co_await connecting;
    std::string answer;
    try {
        for (const auto& piece : pieces) {
            const byte_span part = as_bytes(piece);
            auto writing = s->write_all({&part, 1});
            co_await writing;
            co_await sleep_for(100ms);
        }
        for (;;) {
            byte_buffer into(256);
            auto reading = s->read_some(into);
            const auto n = co_await reading;
            if (n == 0) break;
            answer += as_text(byte_span(into).first(n));
        }
    } catch (const error& e) {
        answer += "error";
    }
    co_return answer;
}

task<void> beside_door(sim::network* network, web* site, std::function<task<void>()> work) {
    net::link_endpoint server(network->host("b"), net::address::sim("b", 1), options("server"));
    if (site != nullptr) {
        server.on_http(
            [site](std::unique_ptr<net::stream> s, byte_buffer first, net::admission* place) {
                return web::take(site, std::move(s), std::move(first), place);
            });
    }
    std::vector<net::link::handle> links;
    scope serving;
    serving.spawn(
        server.serve([&](net::link::handle l) { return hold_link(&links, std::move(l)); }));
    auto running = error_of(with_timeout(work(), 100s));
    const auto fault = co_await running;
    links.clear();
    server.close();
    serving.cancel();
    auto ended = error_of(serving.join());
    (void)co_await ended;
    if (fault) throw *fault;
}

void with_door(web* site, std::function<task<void>(sim::network&)> work) {
    const quiet nothing;
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    loop.run(beside_door(&network, site, [&] { return work(network); }));
    CHECK(network.open_streams() == 0);
}

} // namespace

TEST_CASE("a server that is closed waits for no stranger, nor for a peer without a hello") {
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    loop.run([](sim::network* w) -> task<void> {
        auto patient = options("server");
        patient.bounds.handshake_deadline = 120s; // that of a driver: programs load meanwhile
        net::acceptor_options bounds;
        bounds.deadline = 1h;
        net::link_endpoint server(w->host("b"), net::address::sim("b", 1), patient, {}, {}, bounds);
        scope serving;
        serving.spawn(server.serve(
            [](net::link::handle) -> task<void> { throw error(errc::internal, "no"); }));
        auto connecting = w->host("a").connect(server.local());
        const auto stranger = co_await connecting;
        auto dialling = net::connection::connect(w->host("a"), server.local(), options("mute"));
        const auto mute = co_await dialling;
        auto settle = sleep_for(100ms);
        co_await settle;
        const auto closed_at = loop::current().now();
        server.close();
        auto joined = serving.join();
        co_await joined;
        CHECK(loop::current().now() - closed_at < 5s);
    }(&network));
}

TEST_CASE("a server that is closed waits for no client of HTTP, whatever it has shown") {
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    quiet log;
    loop.run([](sim::network* w) -> task<void> {
        net::link_endpoint server(w->host("b"), net::address::sim("b", 1), options("server"));
        server.on_http([](std::unique_ptr<net::stream> from, byte_buffer,
                          net::admission* place) -> task<void> {
            place->authenticated();
            byte_buffer into(100);
            for (;;) { // a stream of events, until the client goes
                auto reading = from->read_some(into);
                if (co_await reading == 0) co_return;
            }
        });
        scope serving;
        serving.spawn(server.serve([](net::link::handle) -> task<void> { co_return; }));
        auto connecting = w->host("a").connect(server.local());
        const auto page = co_await connecting;
        auto asking = net::detail::write_one(page.get(), as_bytes("GET / HTTP/1.1\r\n\r\n"));
        co_await asking;
        auto settle = sleep_for(100ms);
        co_await settle;
        server.close();
        auto joined = with_timeout(serving.join(), 10s);
        co_await joined;
    }(&network));
    CHECK(log.with("connection failed") == 0);
}

TEST_CASE("a door's own limit counts where it is shorter than that of the handshake") {
    sim::loop loop(5);
    sim::network network(loop, sim::faults());
    loop.run([](sim::network* w) -> task<void> {
        auto patient = options("server");
        patient.bounds.handshake_deadline = 120s;
        net::acceptor_options bounds;
        bounds.deadline = 10s;
        net::link_endpoint server(w->host("b"), net::address::sim("b", 1), patient, {}, {}, bounds);
        scope serving;
        serving.spawn(server.serve([](net::link::handle) -> task<void> { co_return; }));
        auto connecting = w->host("a").connect(server.local());
        const auto stranger = co_await connecting;
        const auto begin = loop::current().now();
        byte_buffer into(1);
        auto reading = stranger->read_some(into);
        const auto got = co_await reading;
        CHECK(got == 0);
        CHECK(loop::current().now() - begin < 15s);
        server.close();
        auto joined = serving.join();
        co_await joined;
    }(&network));
}

TEST_CASE("a stream that begins as HTTP goes to who takes it, in whatever pieces it comes") {
    web site;
    with_door(&site, [&](sim::network& network) -> task<void> {
        const std::vector<std::vector<std::string>> all = {
            {"GET / HTTP/1.1\r\n\r\n"},
            {"G", "E", "T", " ", "/ HTTP/1.1\r\n\r\n"},
            {"DEL", "ETE /x HTTP/1.1\r\n\r\n"},
            {"OPTIONS * HTTP/1.1\r\nX: " + std::string(100, 'x') + "\r\n\r\n"}};
        for (const auto& pieces : all) {
            auto saying = say(&network, pieces);
            const auto answer = co_await saying;
            CHECK(answer == "HTTP/1.1 204 No Content\r\n\r\n");
        }
        REQUIRE(site.firsts.size() == 4);
        CHECK(site.firsts[0] == "GET / HTTP/1.1\r\n\r\n");
        CHECK(site.firsts[1] == "GET "); // the rest is still in the stream
        CHECK(site.firsts[2] == "DELETE /x HTTP/1.1\r\n\r\n");
        CHECK(site.firsts[3].size() == net::hello_bytes);
        // Its failure is its own, and peers are served beside it.
        auto failing = say(&network, {"PUT /x HTTP/1.1\r\n\r\n"});
        const auto nothing = co_await failing;
        CHECK(nothing.empty());
        auto dialing = link_from(&network, "a");
        const auto l = co_await dialing;
        CHECK(l->peer().name == "server");
        auto closing = l->close();
        co_await closing;
    });
}

TEST_CASE("what begins otherwise is refused as before, and so is HTTP where nobody takes it") {
    web site;
    with_door(&site, [&](sim::network& network) -> task<void> {
        for (const char* other : {"GOT / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "SSH-2.0-x\r\n",
                                  "skein\r\nx", "tkein\r\n", "HTTP/1.1 200 OK\r\n", "get / "}) {
            auto saying = say(&network, {other});
            const auto answer = co_await saying;
            INFO(other);
            CHECK(answer.find("HTTP") == std::string::npos);
        }
        auto silent = say(&network, {"GE"}); // the rest never comes: it has the handshake's time
        const auto begin = loop::current().now();
        const auto answer = co_await silent;
        CHECK(answer.empty());
        CHECK(between(begin, loop::current().now()) > 4s);
        CHECK(site.firsts.empty());
    });
    with_door(nullptr, [&](sim::network& network) -> task<void> {
        auto saying = say(&network, {"GET / HTTP/1.1\r\n\r\n"});
        const auto answer = co_await saying;
        CHECK(answer.find("HTTP") == std::string::npos);
        auto dialing = link_from(&network, "a");
        const auto l = co_await dialing;
        CHECK(l->peer().name == "server");
        auto closing = l->close();
        co_await closing;
    });
}

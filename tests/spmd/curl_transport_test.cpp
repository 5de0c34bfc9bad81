// SPDX-License-Identifier: Apache-2.0
// Requests over sockets: to servers that are silent, slow, cut an answer off, or talk for ever.
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/spmd/detail/curl_transport.hpp>
#include <skein/spmd/detail/etcd_messages.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace curl_transport_test {

using namespace skein;
using namespace skein::spmd::detail;
using namespace std::chrono_literals;

namespace {

/// One connection after the other: what each of them asked, and what it is answered.
struct scripted_server {
    explicit scripted_server(net::real_loop& on)
        : network(on), listener(network.listen(net::address::parse("tcp:127.0.0.1:0").value())) {}

    /// Serves one request on a connection of its own; then, unless it is closed, waits for the
    /// other side's end.
    task<void> serve(std::vector<std::string> pieces, bool closes) {
        auto accepting = listener->accept();
        auto stream = co_await accepting;
        std::string text;
        while (text.find("\r\n\r\n{}") == std::string::npos) {
            std::byte some[4096];
            auto reading = stream->read_some(some);
            const auto n = co_await reading;
            if (n == 0) co_return;
            text.append(reinterpret_cast<const char*>(some), n);
        }
        asked = text;
        for (const auto& piece : pieces) {
            const std::vector<byte_span> batch{as_bytes(piece)};
            auto writing = stream->write_all(batch);
            co_await writing;
        }
        if (closes) {
            stream->close();
            co_return;
        }
        served.set();
        std::byte more[16];
        try {
            auto reading = stream->read_some(more);
            (void)co_await reading;
        } catch (const error&) {} // reset
        ended.set();
    }

    std::string url() const { return "http://127.0.0.1" + port() + "/v3/kv/range"; }
    std::string port() const {
        const auto text = to_string(listener->local());
        return text.substr(text.rfind(':'));
    }

    net::real_network network;
    std::unique_ptr<net::listener> listener;
    std::string asked;
    event served, ended;
};

const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
std::string chunk(const std::string& text) {
    return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}
std::string whole(int status, const std::string& body) {
    return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}

etcd_request to(const scripted_server& server, duration timeout = 30s) {
    etcd_request request;
    request.url = server.url();
    request.body = "{}";
    request.timeout = timeout;
    return request;
}

/// Runs f(server, transport) to its end, in a minute.
template <class F>
void run(F f) {
    net::real_loop loop;
    struct together {
        static task<void> go(F f, net::real_loop* on) {
            scripted_server server(*on);
            curl_transport transport({});
            auto work = f(server, transport);
            co_await work;
            CHECK(transport.running() == 0);
        }
    };
    loop.run(with_timeout(together::go(std::move(f), &loop), 60s));
}

} // namespace

TEST_CASE("a request is one of HTTP, and its answer comes back") {
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        scope others;
        others.spawn(server.serve({whole(400, "no")}, true));
        auto request = to(server);
        request.token = "word";
        request.needs_leader = true;
        auto asking = transport.exchange(request, nullptr);
        const auto answer = co_await asking;
        CHECK(answer.trouble == etcd_trouble::none);
        CHECK(answer.status == 400);
        CHECK(answer.body == "no");
        for (const char* line :
             {"POST /v3/kv/range HTTP/1.1\r\n", "Authorization: word\r\n",
              "Grpc-Metadata-hasleader: true\r\n", "Content-Type: application/json\r\n"})
            CHECK(server.asked.find(line) != std::string::npos);
        CHECK(server.asked.find("Expect:") == std::string::npos);
        auto joined = others.join();
        co_await joined;
    });
}

TEST_CASE("proxies of the environment are not asked") {
    ::setenv("http_proxy", "http://127.0.0.1:1", 1); // nobody listens there
    ::setenv("all_proxy", "http://127.0.0.1:1", 1);
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        scope others;
        others.spawn(server.serve({whole(200, "yes")}, true));
        const auto request = to(server);
        auto asking = transport.exchange(request, nullptr);
        const auto asking_came = co_await asking;
        CHECK(asking_came.body == "yes");
        auto joined = others.join();
        co_await joined;
    });
    ::unsetenv("http_proxy");
    ::unsetenv("all_proxy");
}

TEST_CASE("an answer that is cut off, too late or too long is trouble") {
    struct one {
        std::vector<std::string> pieces;
        bool closes;
        duration timeout;
        std::string wanted;
    };
    const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";
    const std::string long_one =
        fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", etcd_answer_limit + 1) +
        std::string(etcd_answer_limit + 1, 'x');
    for (const auto& now : {one{{head}, true, 30s, ""}, one{{head}, false, 200ms, "imed out"},
                            one{{}, false, 200ms, "imed out"}, one{{}, true, 30s, "mpty reply"},
                            one{{long_one}, false, 30s, "more than"}}) {
        run([now](scripted_server& server, curl_transport& transport) -> task<void> {
            scope others;
            struct quietly {
                static task<void> go(task<void> work) {
                    try {
                        co_await work;
                    } catch (const error&) {} // the other side broke it off
                }
            };
            others.spawn(quietly::go(server.serve(now.pieces, now.closes)));
            const auto request = to(server, now.timeout);
            auto asking = transport.exchange(request, nullptr);
            const auto answer = co_await asking;
            CHECK(answer.trouble == etcd_trouble::away);
            INFO(answer.why);
            CHECK(answer.why.find(now.wanted) != std::string::npos);
            auto joined = others.join();
            co_await joined;
        });
    }
}

TEST_CASE("nobody there, and a name that is none, are trouble that may pass") {
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        auto request = to(server);
        server.listener->close();
        auto asking = transport.exchange(request, nullptr);
        const auto asking_came = co_await asking;
        CHECK(asking_came.trouble == etcd_trouble::away);
        request.url = "http://etcd.skein-test.invalid:2379/v3/kv/range";
        auto again = transport.exchange(request, nullptr);
        const auto again_came = co_await again;
        CHECK(again_came.trouble == etcd_trouble::away);
        request.url = "ftp://127.0.0.1/";
        auto third = transport.exchange(request, nullptr);
        const auto third_came = co_await third;
        CHECK(third_came.trouble == etcd_trouble::mistake);
    });
}

TEST_CASE("lines of a stream come one by one, however they are cut") {
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        scope others;
        others.spawn(server.serve(
            {chunked + chunk("on"), chunk("e\ntwo\n\nthr"), chunk("ee\nfour\n")}, false));
        std::vector<std::string> seen;
        etcd_line on_line = [&](std::string_view line) {
            seen.emplace_back(line);
            return seen.size() < 3;
        };
        const auto request = to(server);
        auto watching = transport.exchange(request, &on_line);
        const auto answer = co_await watching;
        CHECK(answer.trouble == etcd_trouble::none);
        CHECK(seen == std::vector<std::string>{"one", "two", "three"});
        auto ended = server.ended.wait();
        co_await ended; // who has seen enough breaks the connection off
        auto joined = others.join();
        co_await joined;
    });
}

TEST_CASE("a stream that was refused has a body, and no lines") {
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        scope others;
        others.spawn(server.serve({whole(401, "{\"code\":16}\n")}, true));
        etcd_line on_line = [](std::string_view) {
            CHECK(false);
            return true;
        };
        const auto request = to(server);
        auto watching = transport.exchange(request, &on_line);
        const auto answer = co_await watching;
        CHECK(answer.status == 401);
        CHECK(answer.body == "{\"code\":16}\n");
        auto joined = others.join();
        co_await joined;
    });
}

TEST_CASE("a cancelled request is broken off: its socket ends, the task says cancelled") {
    for (const bool is_stream : {false, true}) {
        run([is_stream](scripted_server& server, curl_transport& transport) -> task<void> {
            scope others;
            others.spawn(
                server.serve({is_stream ? chunked + chunk("one\n") : std::string()}, false));
            etcd_line on_line = [](std::string_view) { return true; };
            const auto request = to(server);
            cancel_source stop;
            bool was_cancelled = false;
            scope asking;
            struct asked {
                static task<void> go(task<etcd_answer> work, bool* cancelled) {
                    try {
                        (void)co_await work;
                    } catch (const error& e) {
                        *cancelled = e.code() == errc::cancelled;
                    }
                }
            };
            auto exchange = transport.exchange(request, is_stream ? &on_line : nullptr);
            auto cancellable = with_cancel(stop.token(), std::move(exchange));
            asking.spawn(asked::go(std::move(cancellable), &was_cancelled));
            auto served = server.served.wait();
            co_await served;
            CHECK(transport.running() == 1);
            stop.request();
            auto ended = server.ended.wait();
            co_await ended;
            auto told = asking.join();
            co_await told;
            CHECK(was_cancelled);
            CHECK(transport.running() == 0);
            auto joined = others.join();
            co_await joined;
        });
    }
}

TEST_CASE("who is cancelled already asks nothing") {
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        const auto request = to(server);
        cancel_source stop;
        stop.request();
        auto exchange = transport.exchange(request, nullptr);
        auto cancellable = with_cancel(stop.token(), std::move(exchange));
        errc code = errc::unknown;
        try {
            (void)co_await cancellable;
        } catch (const error& e) {
            code = e.code();
        }
        CHECK(code == errc::cancelled);
        CHECK(transport.running() == 0);
    });
}

TEST_CASE("many requests at a time, some of them cancelled, all end") {
    run([](scripted_server& server, curl_transport& transport) -> task<void> {
        constexpr int many = 32;
        scope others;
        struct each {
            static task<void> ask(curl_transport* over, etcd_request request, bool gives_up,
                                  int* ended) {
                try {
                    auto exchange = over->exchange(request, nullptr);
                    if (gives_up) {
                        auto timed = with_timeout(std::move(exchange), 20ms);
                        (void)co_await timed;
                    } else {
                        const auto answer = co_await exchange;
                        CHECK(answer.body == "yes");
                    }
                } catch (const error& e) {
                    CHECK(e.code() == errc::timeout);
                }
                ++*ended;
            }
            static task<void> quietly(task<void> work) {
                try {
                    co_await work;
                } catch (const error&) {}
            }
        };
        int ended = 0;
        for (int i = 0; i < many; ++i) {
            const bool gives_up = i % 3 == 0;
            others.spawn(each::ask(&transport, to(server), gives_up, &ended));
            others.spawn(each::quietly(server.serve({whole(200, "yes")}, true)));
        }
        while (ended < many) {
            auto a_moment = sleep_for(1ms);
            co_await a_moment;
        }
        others.cancel(); // servers that were asked nothing
        auto joined = others.join();
        try {
            co_await joined;
        } catch (const error&) {}
    });
}

TEST_CASE("files of certificates that are not there are named") {
    for (const auto& files :
         {curl_files{"/no/ca.pem", "", ""}, curl_files{"", "/no/cert.pem", "/no/key.pem"}}) {
        try {
            const curl_transport transport(files);
            CHECK(false);
        } catch (const error& e) {
            CHECK(e.code() == errc::not_found);
            CHECK(std::string(e.what()).find("/no/c") != std::string::npos);
        }
    }
}

} // namespace curl_transport_test

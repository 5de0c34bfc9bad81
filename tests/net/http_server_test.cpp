// SPDX-License-Identifier: Apache-2.0
#include "net/http_support.hpp"

#include <vector>

using namespace http_test;

namespace {

task<net::http_answer> show(net::http_call c) {
    co_return wire::json_response(fmt::format("{{\"id\": \"{}\"}}", c.part("id")));
}
task<net::http_answer> echo_body(net::http_call c) {
    co_return wire::json_response(c.request.body);
}
task<net::http_answer> fail(net::http_call c) {
    throw error(errc::not_found, "job " + c.part("id") + " is not there")
        .with_hint("skein job list");
}
task<net::http_answer> slow(net::http_call) {
    co_await sleep_for(20s);
    co_return wire::json_response("{}");
}
net::http_answer page() {
    wire::http_response r;
    r.type = "text/html; charset=utf-8";
    r.body = "<!doctype html>";
    return r;
}

/// What a head has, in small.
net::http_router some_routes() {
    net::http_router r;
    r.add("GET", "/", net::http_right::open,
          [](net::http_call) -> task<net::http_answer> { co_return page(); });
    r.add("GET", "/api/jobs/{id}", net::http_right::view, &show);
    r.add("GET", "/api/jobs/{id}/fault", net::http_right::view, &fail);
    r.add("GET", "/api/slow", net::http_right::view, &slow);
    r.add("POST", "/api/jobs/", net::http_right::change, &echo_body);
    r.add("DELETE", "/api/jobs/{id}", net::http_right::change, &show);
    return r;
}

} // namespace

TEST_CASE("requests of one stream are answered one after another") {
    with_server(some_routes(), [](sim::network& network, net::http_server& web) -> task<void> {
        auto connecting = client::connect(&network, near_host);
        const auto c = co_await connecting;
        for (int i = 0; i < 3; ++i) {
            auto asking =
                client::ask(c.get(), request(fmt::format("GET /api/jobs/{}", i), bearer(view_key)));
            const auto r = co_await asking;
            CHECK(r.status == 200);
            CHECK(r.body == fmt::format("{{\"id\": \"{}\"}}", i));
            CHECK(r.headers.at("Connection") == "keep-alive");
        }
        auto posting = client::ask(c.get(), request("POST /api/jobs", bearer(submit_key), "{1}"));
        const auto posted = co_await posting;
        CHECK(posted.body == "{1}");
        CHECK(web.connections() == 1);
        CHECK(web.answered() == 4);
        // Three at once, then the end.
        std::string all;
        for (int i = 0; i < 3; ++i)
            all += request(fmt::format("GET /api/jobs/p{}", i), bearer(view_key));
        all += request("GET /api/jobs/last", bearer(view_key) + "Connection: close\r\n");
        auto sending = client::send(c.get(), all);
        co_await sending;
        for (const char* id : {"p0", "p1", "p2", "last"}) {
            auto reading = client::receive(c.get());
            const auto r = co_await reading;
            CHECK(r.body == fmt::format("{{\"id\": \"{}\"}}", id));
        }
        auto closing = client::is_closed(c.get());
        const bool closed = co_await closing;
        CHECK(closed);
        c->with->close();
    });
}

TEST_CASE("an unknown path, another method and a handler's error are JSON") {
    with_server(some_routes(), [](sim::network& network, net::http_server&) -> task<void> {
        auto unknown = ask_from(&network, near_host, request("GET /nothing", bearer(view_key)));
        const auto a = co_await unknown;
        CHECK(a.status == 404);
        CHECK(a.headers.at("Content-Type") == "application/json");
        CHECK(a.body.starts_with("{\"code\": \"not_found\", \"message\": \"there is nothing at "
                                 "/nothing\""));
        auto other = ask_from(&network, near_host, request("PUT /api/jobs/1", bearer(view_key)));
        const auto b = co_await other;
        CHECK(b.status == 405);
        CHECK(b.headers.at("Allow") == "OPTIONS, GET, HEAD, DELETE");
        auto failing =
            ask_from(&network, near_host, request("GET /api/jobs/7/fault", bearer(view_key)));
        const auto c = co_await failing;
        CHECK(c.status == 404);
        CHECK(c.body == "{\"code\": \"not_found\", \"message\": \"job 7 is not there\", \"cause\": "
                        "\"\", \"hint\": \"skein job list\"}\n");
    });
}

TEST_CASE("HEAD and OPTIONS are answered without a handler") {
    with_server(some_routes(), [](sim::network& network, net::http_server& web) -> task<void> {
        auto heading = ask_from(&network, near_host, request("HEAD /api/jobs/7", bearer(view_key)));
        const auto a = co_await heading;
        CHECK(a.status == 200);
        CHECK(a.body.empty());
        auto options =
            ask_from(&network, near_host, request("OPTIONS /api/jobs/7", bearer(view_key)));
        const auto b = co_await options;
        CHECK(b.status == 204);
        CHECK(b.headers.at("Allow") == "OPTIONS, GET, HEAD, DELETE");
        CHECK_FALSE(b.headers.contains("Access-Control-Allow-Origin"));
        auto star = ask_from(&network, near_host, request("OPTIONS *", bearer(view_key)));
        const auto c = co_await star;
        CHECK(c.status == 204);
        auto gone = ask_from(&network, near_host, request("HEAD /nothing", bearer(view_key)));
        const auto d = co_await gone;
        CHECK(d.status == 404);
        CHECK(web.answered() == 0);
    });
}

TEST_CASE("every response keeps scripts of strangers out") {
    with_server(some_routes(), [](sim::network& network, net::http_server&) -> task<void> {
        for (const char* line : {"GET /", "GET /healthz", "GET /nothing", "POST /api/jobs"}) {
            auto asking = ask_from(&network, near_host, request(line));
            const auto r = co_await asking;
            INFO(line);
            CHECK(r.headers.at("Content-Security-Policy").starts_with("default-src 'self';"));
            CHECK(r.headers.at("X-Content-Type-Options") == "nosniff");
            CHECK(r.headers.at("Cache-Control") == "no-store");
            CHECK_FALSE(r.headers.contains("Access-Control-Allow-Origin"));
        }
    });
}

// --- rules ------------------------------------------------------------------------------------

namespace {

struct forbidden {
    const char* name;
    std::string headers; ///< instead of those of a good request; each line ends with \r\n
    int status;
    std::string host = "localhost";
    const char* from = near_host;
    net::http_right above = net::http_right::open; ///< routes that need more than that refuse it
};

std::vector<forbidden> forbidden_requests() {
    const auto good = bearer(submit_key);
    using enum net::http_right;
    std::vector<forbidden> all;
    // Whoever asks, and for whatever: no name of a stranger's page leads here.
    for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                             "evil.example:80", "localhost@evil.example", "[::2]", "10.0.0.1",
                             "head.example.", "localhost:80:80", "localhost:x"})
        all.push_back({"another host", good, 403, host});
    for (const char* origin : {"http://evil.example", "null", "http://localhost:81", "file://",
                               "http://localhost.evil.example", "localhost"})
        all.push_back({"another origin", good + "Origin: " + origin + "\r\n", 403});
    all.push_back({"two hosts", good + "Host: evil.example\r\n", 400});
    all.push_back(
        {"two origins", good + "Origin: http://localhost\r\nOrigin: http://evil.example\r\n", 400});
    all.push_back({"length and encoding",
                   good + "Content-Length: 0\r\nTransfer-Encoding: "
                          "chunked\r\n",
                   400});
    all.push_back({"a large header", good + "X: " + std::string(1 << 20, 'x') + "\r\n", 431});
    // What is not open to everybody.
    const auto add = [&](const char* name, std::string headers, int status,
                         const char* from = near_host, net::http_right above = open) {
        all.push_back({name, std::move(headers), status, "localhost", from, above});
    };
    add("no key", "", 401);
    add("a wrong key", bearer(std::string(43, 'x')), 401);
    add("half a key", bearer(submit_key.substr(0, 42)), 401);
    add("an empty key", "Authorization: Bearer \r\n", 401);
    add("two keys", bearer(view_key) + bearer(submit_key), 400);
    add("another scheme", "Authorization: Basic " + submit_key + "\r\n", 401);
    add("a wrong key with a good cookie", bearer("x") + "Cookie: skein_c1=" + view_key + "\r\n",
        401);
    add("the key as a cookie", "Cookie: skein_c1=" + submit_key + "\r\n", 401);
    add("an empty cookie", "Cookie: skein_c1=\r\n", 401);
    add("a page of another site", good + "Sec-Fetch-Site: cross-site\r\n", 403);
    add("a page of another port", good + "Sec-Fetch-Site: same-site\r\n", 403);
    // What changes something.
    add("the key to view", bearer(view_key), 403, near_host, view);
    add("another host's process", good, 403, far_host, view);
    add("a proxy of this host", good + "X-Forwarded-For: 10.1.2.3\r\n", 403, near_host, view);
    return all;
}

std::string filled(std::string pattern) {
    for (auto open = pattern.find('{'); open != std::string::npos; open = pattern.find('{'))
        pattern.replace(open, pattern.find('}') - open + 1, "x");
    return pattern;
}

std::string with_host(const net::http_router::route& r, const std::string& host,
                      const std::string& headers) {
    return fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n{}\r\n", r.method, filled(r.pattern), host,
                       headers);
}

} // namespace

TEST_CASE("every route that the server lists refuses every forbidden request") {
    with_server(some_routes(), [](sim::network& network, net::http_server& web) -> task<void> {
        const auto routes = web.routes();
        REQUIRE(routes.size() == 8);
        std::size_t refused = 0;
        for (const auto& bad : forbidden_requests()) {
            const bool for_all = bad.status == 400 || bad.status == 431 ||
                                 bad.host != "localhost" ||
                                 std::string_view(bad.name) == "another origin";
            for (const auto& route : routes) {
                if (!for_all && route.right <= bad.above) continue;
                auto asking = ask_from(&network, bad.from, with_host(route, bad.host, bad.headers));
                const auto r = co_await asking;
                INFO(bad.name << ": " << route.method << ' ' << route.pattern << ' '
                              << bad.headers.substr(0, 100));
                CHECK(r.status == bad.status);
                CHECK(r.body.starts_with("{\"code\": "));
                ++refused;
            }
        }
        CHECK(web.answered() == 0);
        CHECK(refused > 200);
    });
}

TEST_CASE("what is allowed is answered on every route") {
    with_server(some_routes(), [](sim::network& network, net::http_server& web) -> task<void> {
        for (const auto& route : web.routes()) {
            if (route.pattern == "/login") continue;
            for (const char* host : {"localhost", "LOCALHOST:1234", "127.0.0.1:80", "[::1]:5",
                                     "[::1]", "head.example:6380"}) {
                const auto headers = bearer(submit_key) +
                                     fmt::format("Origin: http://{}\r\n", host) +
                                     "Sec-Fetch-Site: same-origin\r\n";
                auto asking = ask_from(&network, near_host, with_host(route, host, headers));
                const auto r = co_await asking;
                INFO(route.method << ' ' << route.pattern << ' ' << host);
                CHECK(r.status == (route.pattern.ends_with("fault") ? 404 : 200));
            }
            auto looking =
                ask_from(&network, far_host, with_host(route, "head.example", bearer(view_key)));
            const auto r = co_await looking;
            CHECK((r.status == 403) == (route.right == net::http_right::change));
        }
    });
}

TEST_CASE("a login link gives a cookie once, and the cookie does what its key does") {
    with_server(some_routes(), [](sim::network& network, net::http_server& web) -> task<void> {
        std::map<net::http_right, std::string> cookies;
        for (const auto right : {net::http_right::view, net::http_right::change}) {
            const auto link = web.login_link(right);
            auto opening = ask_from(&network, near_host, request("GET " + link));
            const auto r = co_await opening;
            CHECK(r.status == 303);
            CHECK(r.headers.at("Location") == "/");
            const auto cookie = r.headers.at("Set-Cookie");
            CHECK(cookie.starts_with("skein_c1="));
            CHECK(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"));
            CHECK(cookie.find(view_key) == std::string::npos);
            cookies[right] =
                "Cookie: other=1; " + cookie.substr(0, cookie.find(';')) + "; last=2\r\n";
            auto again = ask_from(&network, near_host, request("GET " + link));
            const auto second = co_await again;
            CHECK(second.status == 401);
            CHECK_FALSE(second.headers.contains("Set-Cookie"));
        }
        CHECK(cookies[net::http_right::view] != cookies[net::http_right::change]);
        const auto status = [&](std::string line, std::string headers) {
            return ask_from(&network, near_host, request(line, headers));
        };
        const std::string ours = "Origin: http://localhost\r\n";
        auto look = status("GET /api/jobs/1", cookies[net::http_right::view]);
        const auto look_got = co_await look;
        CHECK(look_got.status == 200);
        auto both = status("GET /api/jobs/1", cookies[net::http_right::change]);
        const auto both_got = co_await both;
        CHECK(both_got.status == 200);
        auto viewer = status("DELETE /api/jobs/1", cookies[net::http_right::view] + ours);
        const auto viewer_got = co_await viewer;
        CHECK(viewer_got.status == 403);
        auto page = status("DELETE /api/jobs/1", cookies[net::http_right::change] + ours);
        const auto page_got = co_await page;
        CHECK(page_got.status == 200);
        auto nowhere = status("DELETE /api/jobs/1", cookies[net::http_right::change]);
        const auto nowhere_got = co_await nowhere;
        CHECK(nowhere_got.status == 403); // a form of another site sends cookies, too
        // A page of another port of this host is another origin, though browsers send it the cookie.
        auto port = ask_from(&network, near_host,
                             "DELETE /api/jobs/1 HTTP/1.1\r\nHost: localhost:9999\r\n" +
                                 cookies[net::http_right::change] +
                                 "Origin: http://localhost:9999\r\n\r\n");
        const auto port_got = co_await port;
        CHECK(port_got.status == 401);
        auto other = status("GET /api/jobs/1", "Cookie: skein_c2=1; skein_c1x=2\r\n");
        const auto other_got = co_await other;
        CHECK(other_got.status == 401);
    });
}

TEST_CASE("a login link is good for five minutes, and not for ever many") {
    with_server(some_routes(), [](sim::network& network, net::http_server& web) -> task<void> {
        const auto late = web.login_link(net::http_right::view);
        co_await sleep_for(301s);
        auto opening = ask_from(&network, near_host, request("GET " + late));
        const auto opening_got = co_await opening;
        CHECK(opening_got.status == 401);
        const auto first = web.login_link(net::http_right::view);
        std::string last;
        for (int i = 0; i < 16; ++i) last = web.login_link(net::http_right::view);
        auto pushed_out = ask_from(&network, near_host, request("GET " + first));
        const auto pushed_out_got = co_await pushed_out;
        CHECK(pushed_out_got.status == 401);
        auto good = ask_from(&network, near_host, request("GET " + last));
        const auto good_got = co_await good;
        CHECK(good_got.status == 303);
        auto none = ask_from(&network, near_host, request("GET /login"));
        const auto none_got = co_await none;
        CHECK(none_got.status == 401);
        auto empty = ask_from(&network, near_host, request("GET /login?once="));
        const auto empty_got = co_await empty;
        CHECK(empty_got.status == 401);
    });
}

TEST_CASE("a server without keys lets nobody in") {
    auto how = server_options();
    how.keys = {};
    with_server(
        some_routes(),
        [](sim::network& network, net::http_server& web) -> task<void> {
            for (const std::string& headers :
                 {std::string(), std::string("Authorization: Bearer \r\n"),
                  std::string("Cookie: skein_c1=\r\n"), bearer(view_key)}) {
                auto asking = ask_from(&network, near_host, request("GET /api/jobs/1", headers));
                const auto asking_got = co_await asking;
                CHECK(asking_got.status == 401);
            }
            CHECK_THROWS_AS(web.login_link(net::http_right::view), error);
            auto healthy = ask_from(&network, near_host, request("GET /healthz"));
            const auto healthy_got = co_await healthy;
            CHECK(healthy_got.body == "ok\n");
        },
        how);
    how.keys.view = "short";
    CHECK_THROWS_AS(net::http_server(some_routes(), how), error);
    how.keys.view = view_key;
    how.cluster = "a;b";
    CHECK_THROWS_AS(net::http_server(some_routes(), how), error);
}

// --- time and bounds --------------------------------------------------------------------------

TEST_CASE("who is silent, slow or too many is sent away, and nobody waits for it") {
    auto how = server_options();
    how.most_connections = 2; // those that have shown a key
    how.kept_to_change = 0;
    with_server(
        some_routes(),
        [](sim::network& network, net::http_server& web) -> task<void> {
            const auto begin = loop::current().now();
            const auto after = [&] { return between(begin, loop::current().now()); };
            std::vector<std::shared_ptr<client>> all;
            for (int i = 0; i < 4; ++i) {
                auto connecting = client::connect(&network, near_host);
                all.push_back(co_await connecting);
            }
            auto asked = client::send(all[0].get(), request("GET /api/slow", bearer(view_key)));
            co_await asked; // what is being answered goes for nobody
            auto half = client::send(all[1].get(), "GET /api/jobs/1 HTTP/1.1\r\nHost: local");
            co_await half;
            auto body = client::send(
                all[2].get(),
                request("POST /api/jobs", bearer(submit_key) + "Content-Length: 10\r\n") + "12345");
            co_await body;
            auto fifth =
                ask_from(&network, near_host, request("GET /api/jobs/1", bearer(view_key)));
            const auto fifth_got = co_await fifth;
            CHECK(fifth_got.status == 503);
            auto stranger = ask_from(&network, near_host, request("GET /healthz"));
            const auto stranger_got = co_await stranger;
            CHECK(stranger_got.status == 200);
            // Half a header has 5 s, half a body and an idle client 30 s, a silent one 5 s.
            auto slow = client::receive(all[1].get());
            const auto slow_got = co_await slow;
            CHECK(slow_got.status == 408);
            CHECK(after() < 6s);
            auto silent = client::is_closed(all[3].get());
            const auto silent_got = co_await silent;
            CHECK(silent_got);
            CHECK(after() < 6s);
            for (int i : {1, 3}) all[static_cast<std::size_t>(i)]->with->close();
            co_await sleep_for(2s);
            CHECK(web.connections() == 2);
            auto late = client::receive(all[2].get());
            const auto late_got = co_await late;
            CHECK(late_got.status == 408);
            CHECK(after() < 32s);
            auto answer = client::receive(all[0].get());
            const auto answer_got = co_await answer;
            CHECK(answer_got.status == 200);
            auto idle = client::is_closed(all[0].get());
            const auto idle_got = co_await idle;
            CHECK(idle_got);
            CHECK(after() > 49s);
            for (const auto& c : all) c->with->close();
        },
        how);
}

TEST_CASE("a handler that takes long keeps nobody else waiting, and has a limit") {
    auto how = server_options();
    how.answer_within = 10s;
    with_server(
        some_routes(),
        [](sim::network& network, net::http_server&) -> task<void> {
            const auto begin = loop::current().now();
            auto connecting = client::connect(&network, near_host);
            const auto slow_one = co_await connecting;
            auto sending = client::send(slow_one.get(), request("GET /api/slow", bearer(view_key)));
            co_await sending;
            auto quick =
                ask_from(&network, near_host, request("GET /api/jobs/1", bearer(view_key)));
            const auto quick_got = co_await quick;
            CHECK(quick_got.status == 200);
            CHECK(between(begin, loop::current().now()) < 1s);
            auto late = client::receive(slow_one.get());
            const auto late_got = co_await late;
            CHECK(late_got.status == 504);
            CHECK(between(begin, loop::current().now()) < 12s);
            slow_one->with->close();
        },
        how);
}

TEST_CASE("a body is asked for when the request is allowed, and refused unread otherwise") {
    with_server(some_routes(), [](sim::network& network, net::http_server&) -> task<void> {
        auto connecting = client::connect(&network, near_host);
        const auto c = co_await connecting;
        auto sending = client::send(
            c.get(), request("POST /api/jobs",
                             bearer(submit_key) + "Expect: 100-continue\r\nContent-Length: 2\r\n"));
        co_await sending;
        auto going_on = client::until(c.get(), "\r\n\r\n");
        const auto going_on_got = co_await going_on;
        CHECK(going_on_got == "HTTP/1.1 100 Continue\r\n\r\n");
        auto asking = client::ask(c.get(), "{}");
        const auto asking_got = co_await asking;
        CHECK(asking_got.body == "{}");
        c->with->close();
        auto refusing = ask_from(
            &network, near_host,
            request("POST /api/jobs",
                    bearer(view_key) + "Expect: 100-continue\r\nContent-Length: 1000000\r\n"));
        const auto r = co_await refusing;
        CHECK(r.status == 403);
        CHECK(r.headers.at("Connection") == "close");
    });
}

// --- events -----------------------------------------------------------------------------------

namespace {

/// What a feed is: a number that grows, once a second.
struct counter {
    int asked = 0, cancelled = 0, left = 1 << 30;
    std::vector<std::string> seen; ///< ids that the server has asked with
};

task<std::optional<net::http_event>> next_second(counter* of, std::string last) {
    ++of->asked;
    of->seen.push_back(last);
    if (of->left-- == 0) co_return std::nullopt;
    try {
        co_await sleep_for(1s);
    } catch (const error&) {
        ++of->cancelled;
        throw;
    }
    const auto now = to_seconds(loop::current().now().time_since_epoch());
    co_return net::http_event(fmt::format("{{\"t\": {:.0f}}}\nsecond line", now),
                              fmt::format("{:.0f}", now), "tick");
}
task<std::optional<net::http_event>> never(counter* of, std::string) {
    ++of->asked;
    co_await sleep_for(3600s);
    co_return std::nullopt;
}
task<std::optional<net::http_event>> broken(counter*, std::string) {
    throw error(errc::io, "the feed is broken");
    co_return std::nullopt;
}

using source = task<std::optional<net::http_event>> (*)(counter*, std::string);

task<net::http_answer> events_of(counter* of, source next) {
    co_return net::http_events([of, next](std::string last) { return next(of, std::move(last)); });
}

net::http_router event_routes(counter* of, source next) {
    net::http_router r;
    r.add("GET", "/api/v1/events", net::http_right::view,
          [of, next](net::http_call) { return events_of(of, next); });
    return r;
}

} // namespace

TEST_CASE("events come as they are, from the one on that the client has seen last") {
    counter feed;
    with_server(
        event_routes(&feed, &next_second),
        [&](sim::network& network, net::http_server&) -> task<void> {
            auto connecting = client::connect(&network, near_host);
            const auto c = co_await connecting;
            auto asking = client::ask(
                c.get(), request("GET /api/v1/events", bearer(view_key) + "Last-Event-ID: 41\r\n"));
            const auto r = co_await asking;
            CHECK(r.status == 200);
            CHECK(r.headers.at("Content-Type") == "text/event-stream");
            CHECK_FALSE(r.headers.contains("Content-Length"));
            auto first = client::until(c.get(), "\n\n");
            const auto first_got = co_await first;
            CHECK(first_got == "retry: 2000\n\n");
            auto second = client::until(c.get(), "\n\n");
            const auto second_got = co_await second;
            CHECK(second_got == "id: 1\nevent: tick\ndata: {\"t\": 1}\ndata: second line\n\n");
            auto third = client::until(c.get(), "\n\n");
            const auto third_got = co_await third;
            CHECK(third_got.starts_with("id: 2\n"));
            CHECK(feed.seen.at(0) == "41");
            CHECK(feed.seen.at(1) == "1");
            c->with->close();
            co_await sleep_for(3s);
            CHECK(feed.asked < 6); // it hears that the client has left
            CHECK(feed.cancelled == 1);
        });
}

TEST_CASE("a source without news is asked again after a heartbeat, and one that ends, ends") {
    counter silent;
    with_server(event_routes(&silent, &never),
                [&](sim::network& network, net::http_server& web) -> task<void> {
                    auto connecting = client::connect(&network, near_host);
                    const auto c = co_await connecting;
                    auto asking =
                        client::ask(c.get(), request("GET /api/v1/events", bearer(view_key)));
                    co_await asking;
                    auto retry = client::until(c.get(), "\n\n");
                    co_await retry;
                    for (int i = 0; i < 6; ++i) {
                        auto beat = client::until(c.get(), "\n\n");
                        const auto beat_got = co_await beat;
                        CHECK(beat_got == ": still here\n\n");
                    }
                    CHECK(silent.asked >= 6);
                    CHECK(web.connections() == 1); // longer than a handler may take
                    c->with->close();
                });
    counter ending;
    ending.left = 2;
    with_server(event_routes(&ending, &next_second),
                [&](sim::network& network, net::http_server&) -> task<void> {
                    auto connecting = client::connect(&network, near_host);
                    const auto c = co_await connecting;
                    auto asking =
                        client::ask(c.get(), request("GET /api/v1/events", bearer(view_key)));
                    co_await asking;
                    auto all = client::until(c.get(), "nothing of that kind");
                    const auto text = co_await all;
                    CHECK(text.find("id: 2\n") != std::string::npos);
                    CHECK(text.find("id: 3\n") == std::string::npos);
                    c->with->close();
                });
    counter failing;
    with_server(
        event_routes(&failing, &broken),
        [&](sim::network& network, net::http_server&) -> task<void> {
            auto connecting = client::connect(&network, near_host);
            const auto c = co_await connecting;
            auto asking = client::ask(c.get(), request("GET /api/v1/events", bearer(view_key)));
            co_await asking;
            auto all = client::until(c.get(), "nothing of that kind");
            const auto all_got = co_await all;
            CHECK(all_got.find("event: fault\ndata: {\"code\": \"io\"") != std::string::npos);
            c->with->close();
        });
}

namespace {

task<std::optional<net::http_event>> always(counter* of, std::string) {
    ++of->asked;
    co_return net::http_event(std::string(100'000, 'x'));
}

} // namespace

TEST_CASE("a client that does not read misses events, and goes when it takes none for long") {
    counter feed;
    with_server(event_routes(&feed, &always),
                [&](sim::network& network, net::http_server& web) -> task<void> {
                    auto connecting = client::connect(&network, near_host);
                    const auto c = co_await connecting;
                    auto sending =
                        client::send(c.get(), request("GET /api/v1/events", bearer(view_key)));
                    co_await sending;
                    co_await sleep_for(5s);
                    const int asked = feed.asked;
                    CHECK(asked > 0);
                    co_await sleep_for(20s);
                    CHECK(feed.asked == asked); // nothing is queued for it
                    CHECK(web.connections() == 1);
                    auto quick = ask_from(&network, near_host, request("GET /healthz"));
                    const auto healthy = co_await quick;
                    CHECK(healthy.status == 200);
                    co_await sleep_for(10s);
                    CHECK(web.connections() == 0);
                    c->with->close();
                });
}

namespace {

task<net::http_answer> say_much(std::string* asked, net::http_call c) {
    *asked += c.part("who");
    wire::http_response big;
    big.body = std::string(100'000, 'x');
    co_return big;
}

} // namespace

TEST_CASE("clients that do not read keep nobody's request from being answered next") {
    std::string asked;
    net::http_router routes;
    routes.add("GET", "/api/{who}", net::http_right::view,
               [&](net::http_call c) { return say_much(&asked, std::move(c)); });
    with_server(std::move(routes), [&](sim::network& network, net::http_server&) -> task<void> {
        std::vector<std::shared_ptr<client>> all;
        std::string twenty;
        for (int i = 0; i < 20; ++i) twenty += request("GET /api/f", bearer(view_key));
        for (int i = 0; i < 40; ++i) {
            auto connecting = client::connect(&network, near_host);
            all.push_back(co_await connecting);
            auto sending = client::send(all.back().get(), twenty);
            co_await sending;
        }
        co_await sleep_for(2s);
        const auto before = asked.size();
        CHECK(before < std::size_t{40} * 20); // what is not read is not made
        auto mine = ask_from(&network, near_host, request("GET /api/m", bearer(view_key)));
        const auto mine_got = co_await mine;
        CHECK(mine_got.status == 200);
        CHECK(asked.find('m') == before);
        for (const auto& c : all) c->with->close();
    });
}

TEST_CASE("unread streams of events keep nobody out, whatever their key") {
    counter feed;
    auto how = server_options();
    how.most_connections = 24;
    how.kept_to_change = 4;
    how.most_streams = 10;
    auto routes = event_routes(&feed, &always);
    routes.add("GET", "/api/jobs/{id}", net::http_right::view, &show);
    with_server(
        std::move(routes),
        [&](sim::network& network, net::http_server& web) -> task<void> {
            std::vector<std::shared_ptr<client>> unread, idle;
            for (int i = 0; i < 30; ++i) {
                auto connecting = client::connect(&network, near_host);
                unread.push_back(co_await connecting);
                auto asking = client::send(unread.back().get(),
                                           request("GET /api/v1/events", bearer(view_key)));
                co_await asking;
            }
            co_await sleep_for(1s);
            CHECK(web.connections() == 10); // of one key; the oldest have gone
            for (int i = 0; i < 34; ++i) {
                const auto key = i < 30 ? view_key : submit_key;
                auto connecting = client::connect(&network, near_host);
                idle.push_back(co_await connecting);
                auto asking =
                    client::ask(idle.back().get(), request("GET /api/jobs/1", bearer(key)));
                const auto got = co_await asking;
                CHECK(got.status == 200);
                if (i != 29 && i != 33) continue;
                co_await sleep_for(1s);
                const std::size_t kept = 4; // for who may change something
                CHECK(web.connections() == (i == 29 ? 24 - kept : 24));
            }
            for (const auto& c : unread) c->with->close();
            for (const auto& c : idle) c->with->close();
        },
        how);
}

TEST_CASE("a body in chunks comes to the handler whole") {
    with_server(some_routes(), [](sim::network& network, net::http_server&) -> task<void> {
        auto connecting = client::connect(&network, near_host);
        const auto c = co_await connecting;
        auto sending =
            client::send(c.get(), request("POST /api/jobs",
                                          bearer(submit_key) + "Transfer-Encoding: chunked\r\n") +
                                      "5\r\nhello\r\n");
        co_await sending;
        co_await sleep_for(1s);
        auto asking = client::ask(c.get(), "6; x=y\r\n world\r\n0\r\nHost: evil\r\n\r\n");
        const auto whole = co_await asking;
        CHECK(whole.body == "hello world");
        auto broken =
            client::ask(c.get(), request("POST /api/jobs",
                                         bearer(submit_key) + "Transfer-Encoding: chunked\r\n") +
                                     "5\r\nhello world\r\n");
        const auto refused = co_await broken;
        CHECK(refused.status == 400);
        auto closing = client::is_closed(c.get());
        const bool closed = co_await closing;
        CHECK(closed);
        c->with->close();
    });
}

// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/http.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

using namespace skein;
using wire::http_stage;

namespace {

struct outcome {
    std::vector<wire::http_request> requests;
    int status = 0; ///< of the error that ended it
    std::string why;
    bool header_first = true; ///< each request was told as a header before
};

/// Reads all that a client sends, in pieces of so many bytes.
outcome read_all(std::string_view text, std::size_t piece, wire::http_limits bounds = {}) {
    outcome out;
    wire::http_parser parser(bounds);
    bool header = false;
    for (std::size_t at = 0; at < text.size(); at += piece) {
        parser.feed(as_bytes(text.substr(at, piece)));
        for (;;) {
            const auto stage = parser.advance();
            if (!stage) {
                out.status = parser.status();
                out.why = stage.error().what();
                CHECK(!parser.advance()); // and so it stays
                return out;
            }
            if (*stage == http_stage::more) break;
            if (*stage == http_stage::header) {
                header = true;
                CHECK(parser.request().body.empty());
                continue;
            }
            out.header_first = out.header_first && std::exchange(header, false);
            out.requests.push_back(parser.take());
        }
    }
    return out;
}

wire::http_request one(std::string_view text) {
    auto read = read_all(text, 7);
    INFO(read.why);
    REQUIRE(read.requests.size() == 1);
    return read.requests[0];
}

std::string with_host(std::string_view line, std::string_view headers = {}) {
    return fmt::format("{}\r\nHost: h\r\n{}\r\n", line, headers);
}

int status_of(std::string_view text) {
    const auto whole = read_all(text, text.size());
    const auto bytewise = read_all(text, 1);
    INFO(text.substr(0, 200));
    CHECK(whole.status == bytewise.status);
    CHECK(whole.requests.size() == bytewise.requests.size());
    return whole.status;
}

} // namespace

TEST_CASE("a request is method, path, query, headers and body, however it arrives") {
    const std::string text = "POST /api/jobs/a%20b?limit=3&filter=x%3Dy+z&flag HTTP/1.1\r\n"
                             "Host: localhost:80\r\nX-Thing:  two words \r\nContent-Length: 5\r\n"
                             "\r\nhello";
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{64}, text.size()}) {
        const auto read = read_all(text, piece);
        REQUIRE(read.requests.size() == 1);
        CHECK(read.header_first);
        const auto& r = read.requests[0];
        CHECK(r.method == "POST");
        CHECK(r.path == "/api/jobs/a b");
        REQUIRE(r.query.size() == 3);
        CHECK(*r.parameter("limit") == "3");
        CHECK(*r.parameter("filter") == "x=y z");
        CHECK(r.parameter("flag")->empty());
        CHECK(r.parameter("other") == nullptr);
        CHECK(*r.header("x-thing") == "two words");
        CHECK(r.body == "hello");
        CHECK(r.keep_alive);
    }
}

TEST_CASE("the header is told before the body has come") {
    wire::http_parser parser;
    CHECK(parser.is_idle());
    parser.feed(as_bytes("PUT /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: "
                         "2\r\n\r\n"));
    CHECK(parser.advance().value() == http_stage::header);
    CHECK(parser.request().expects_continue);
    CHECK(parser.advance().value() == http_stage::more);
    CHECK_FALSE(parser.is_idle());
    parser.feed(as_bytes("ab"));
    CHECK(parser.advance().value() == http_stage::complete);
    CHECK(parser.take().body == "ab");
    CHECK(parser.is_idle());
}

TEST_CASE("chunks are joined, their extensions and what follows them do not count") {
    const auto r = one(with_host("POST /x HTTP/1.1", "Transfer-Encoding: chunked\r\n") +
                       "3;name=value\r\nabc\r\n0A\r\n0123456789\r\n0\r\nAuthorization: Bearer "
                       "k\r\nHost: evil\r\n\r\n");
    CHECK(r.body == "abc0123456789");
    CHECK(*r.header("host") == "h");
    CHECK(r.header("authorization") == nullptr);
}

TEST_CASE("pipelined requests come one by one") {
    std::string text;
    for (int i = 0; i < 5; ++i) {
        text += with_host(fmt::format("GET /{} HTTP/1.1", i));
        text += with_host("POST /b HTTP/1.1", "Content-Length: 3\r\n") + "GET";
        text += with_host("POST /c HTTP/1.1", "Transfer-Encoding: chunked\r\n") +
                "2\r\nPO\r\n0\r\n\r\n";
    }
    for (const std::size_t piece : {std::size_t{1}, std::size_t{50}, text.size()}) {
        const auto read = read_all(text, piece);
        REQUIRE(read.requests.size() == 15);
        CHECK(read.requests[12].path == "/4");
        CHECK(read.requests[13].body == "GET");
        CHECK(read.requests[14].body == "PO");
    }
}

TEST_CASE("half a request waits for the rest") {
    const std::string whole = with_host("POST /x HTTP/1.1", "Content-Length: 3\r\n") + "abc";
    for (std::size_t n = 1; n < whole.size(); ++n) {
        const auto read = read_all(std::string_view(whole).substr(0, n), 5);
        CHECK(read.requests.empty());
        CHECK(read.status == 0);
    }
}

TEST_CASE("what two readers could understand differently is refused") {
    const auto post = [](std::string_view headers, std::string_view body = "") {
        return with_host("POST /x HTTP/1.1", headers) + std::string(body);
    };
    CHECK(status_of(post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")) ==
          400);
    CHECK(status_of(post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n")) ==
          400);
    CHECK(status_of(post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc")) == 400);
    CHECK(status_of(post("Content-Length: 3\r\nContent-Length: 4\r\n", "abc")) == 400);
    CHECK(status_of(post("Content-Length: 3, 3\r\n", "abc")) == 400);
    CHECK(status_of(post("Content-Length: +3\r\n", "abc")) == 400);
    CHECK(status_of(post("Content-Length: 0x3\r\n", "abc")) == 400);
    CHECK(status_of(post("Content-Length: 99999999999999999999999\r\n")) == 400);
    CHECK(status_of(post("Content-Length : 3\r\n", "abc")) == 400);
    CHECK(status_of(post("Content-Length:\r\n", "abc")) == 400);
    CHECK(status_of(post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")) == 501);
    CHECK(status_of(post("Transfer-Encoding: identity\r\n")) == 501);
    CHECK(status_of(post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                         "0\r\n\r\n")) == 400);
    CHECK(status_of(post("Transfer-Encoding: chunked\r\n", "x\r\n\r\n")) == 400);
    CHECK(status_of(post("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n")) == 400);
    CHECK(status_of(post("Transfer-Encoding: chunked\r\n", "3\nabc\n0\n\n")) == 400);
    CHECK(status_of(post("Transfer-Encoding: chunked\r\n",
                         "fffffffffffffffff\r\nabc\r\n0\r\n\r\n")) == 400);
    CHECK(status_of("POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") == 400);
    CHECK(status_of(post("X: a\r\n b\r\n")) == 400);         // folded
    CHECK(status_of("GET /x HTTP/1.1\nHost: h\n\n") == 400); // bare line ends
    CHECK(status_of(post("X: a\n")) == 400);
    CHECK(status_of(post("X: a\rb\r\n")) == 400);
    CHECK(status_of(post(std::string_view("X: a\0b\r\n", 8))) == 400);
    CHECK(status_of(post("Host: other\r\n")) == 400);
    CHECK(status_of("GET /x HTTP/1.1\r\n\r\n") == 400); // no Host
    CHECK(status_of(post("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n")) == 400);
    CHECK(status_of("GET /x HTTP/1.0\r\n\r\n") == 0);
}

TEST_CASE("targets that could mean another path are refused") {
    const auto get = [](std::string_view target) {
        return status_of(with_host(fmt::format("GET {} HTTP/1.1", target)));
    };
    for (const char* good : {"/", "/a/", "/a/b?x=/../y", "/%C3%A9", "/a.b/..c", "/?"})
        CHECK(get(good) == 0);
    for (const char* bad : {"/../x", "/a/./b", "/a/..", "/%2e%2e/x", "/a%2Fb", "/a%5cb", "//a",
                            "/a//b", "/%00", "/%0a", "/%zz", "/%4", "/a#b", "http://h/x", "x", "*",
                            "/%ff", "/?a=%0d%0aX:1", "/%C2%85"})
        CHECK(get(bad) == 400);
    CHECK(one(with_host("OPTIONS * HTTP/1.1")).path == "*");
    CHECK(status_of(with_host("CONNECT h:80 HTTP/1.1")) == 400);
}

TEST_CASE("other versions and other protocols are refused") {
    CHECK(status_of(with_host("GET / HTTP/2.0")) == 505);
    CHECK(status_of(with_host("GET / HTTP/1.2")) == 505);
    CHECK(status_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == 505);
    CHECK(status_of("GET /\r\n\r\n") == 400);
    CHECK(status_of("\x16\x03\x01\x02") == 400); // at once: a TLS client waits for an answer
    CHECK(status_of("HTTP/1.1 200 OK\r\n\r\n") == 400);
}

TEST_CASE("header, headers, chunks and body have bounds") {
    const std::string big(1 << 20, 'a');
    CHECK(status_of(with_host("GET /x HTTP/1.1", "X: " + big + "\r\n")) == 431);
    CHECK(status_of("GET /" + big) == 431);
    CHECK(status_of(big) == 431);
    std::string many;
    for (int i = 0; i < 99; ++i) many += fmt::format("X{}: 1\r\n", i);
    CHECK(status_of(with_host("GET /x HTTP/1.1", many)) == 0);
    CHECK(status_of(with_host("GET /x HTTP/1.1", many + "Y: 1\r\n")) == 431);
    // The bound holds over whole lines, too, and to the byte.
    std::string lines;
    while (lines.size() < (16 << 10) - 400) lines += "X: " + std::string(195, 'b') + "\r\n";
    const auto fill = (std::size_t{16} << 10) - with_host("GET /x HTTP/1.1", lines).size() - 5;
    const auto filled = lines + "Y: " + std::string(fill, 'c') + "\r\n";
    CHECK(with_host("GET /x HTTP/1.1", filled).size() == 16 << 10);
    CHECK(status_of(with_host("GET /x HTTP/1.1", filled)) == 0);
    CHECK(status_of(with_host("GET /xx HTTP/1.1", filled)) == 431);

    CHECK(one(with_host("POST /x HTTP/1.1", "Content-Length: 1048576\r\n") + big).body == big);
    CHECK(status_of(with_host("POST /x HTTP/1.1", "Content-Length: 1048577\r\n")) == 413);
    const auto chunked = with_host("POST /x HTTP/1.1", "Transfer-Encoding: chunked\r\n");
    CHECK(status_of(chunked + "100000\r\n" + big + "\r\n1\r\na\r\n0\r\n\r\n") == 413);
    CHECK(status_of(chunked + "1;" + std::string(20000, 'e') + "\r\na\r\n0\r\n\r\n") == 400);
    std::string padded = chunked;
    for (int i = 0; i < 130; ++i) padded += "1;x=" + std::string(9000, 'e') + "\r\na\r\n";
    CHECK(status_of(padded) == 413);
    std::string trailers = chunked + "0\r\n";
    for (int i = 0; i < 120; ++i) trailers += fmt::format("T{}: 1\r\n", i);
    CHECK(status_of(trailers + "\r\n") == 431);
}

TEST_CASE("a connection ends where the client wants it") {
    CHECK_FALSE(one("GET / HTTP/1.0\r\n\r\n").keep_alive);
    CHECK(one("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
    CHECK_FALSE(one(with_host("GET / HTTP/1.1", "Connection: close\r\n")).keep_alive);
}

TEST_CASE("a response is written with its headers, and nothing in them makes a new line") {
    wire::http_response r = wire::json_response("{}", 201);
    r.headers.emplace_back("X-Name", "a\r\nSet-Cookie: b");
    const std::size_t n = r.body.size();
    CHECK(wire::head_of(r, true, &n) ==
          "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
          "X-Name: a  Set-Cookie: b\r\nConnection: keep-alive\r\n\r\n");
    CHECK(wire::head_of({}, false, nullptr) == "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    const auto why = error(errc::not_found, "job \"x\" is not there")
                         .with_cause("it was deleted")
                         .with_hint("skein job list");
    const auto failed = wire::error_response(why);
    CHECK(failed.status == 404);
    CHECK(failed.body == "{\"code\": \"not_found\", \"message\": \"job \\\"x\\\" is not there\", "
                         "\"cause\": \"it was deleted\", \"hint\": \"skein job list\"}\n");
    CHECK(wire::error_response(why, 400).status == 400);
}

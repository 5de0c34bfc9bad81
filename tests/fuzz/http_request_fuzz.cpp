// SPDX-License-Identifier: Apache-2.0
// Any bytes as requests, in pieces of any size: the same requests come of them however they are cut,
// none exceeds its bounds, and what is refused is refused for good.
//
// The first byte chooses the size of the pieces, a prefix flag starts behind a good header.
#include <skein/wire/http.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

using namespace skein;

namespace {

void expect(bool holds) {
    if (!holds) std::abort();
}

constexpr wire::http_limits bounds{.header_bytes = 512, .headers = 10, .body_bytes = 1024};

struct outcome {
    std::vector<wire::http_request> requests;
    int status = 0;
};

void check(const wire::http_request& r) {
    expect(!r.method.empty());
    expect(r.path == "*" || r.path.starts_with('/'));
    expect(r.path.find('\0') == std::string::npos && r.path.find("//") == std::string::npos);
    expect(r.path.find("/../") == std::string::npos && !r.path.ends_with("/.."));
    expect(r.headers.size() <= bounds.headers && r.body.size() <= bounds.body_bytes);
    for (const auto& [name, value] : r.headers)
        expect(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
    expect(!(r.header("content-length") && r.header("transfer-encoding")));
    expect(r.body.empty() || r.header("content-length") || r.header("transfer-encoding"));
}

outcome read(std::string_view text, std::size_t piece) {
    outcome out;
    wire::http_parser parser(bounds);
    for (std::size_t at = 0; at < text.size(); at += piece) {
        parser.feed(as_bytes(text.substr(at, piece)));
        for (;;) {
            const auto stage = parser.advance();
            if (!stage) {
                out.status = parser.status();
                expect(out.status >= 400 && !parser.advance());
                return out;
            }
            if (*stage == wire::http_stage::more) break;
            if (*stage == wire::http_stage::header) continue;
            out.requests.push_back(parser.take());
            check(out.requests.back());
        }
        expect(parser.buffered() <= bounds.header_bytes + piece);
    }
    return out;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 1) return 0;
    std::string text;
    if ((data[0] & 3) == 1)
        text = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    if ((data[0] & 3) == 2) text = "GET /x HTTP/1.1\r\nHost: h\r\n";
    text.append(reinterpret_cast<const char*>(data) + 1, size - 1);
    const auto whole = read(text, text.size() + 1);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{1} + (data[0] >> 2)}) {
        const auto cut = read(text, piece);
        expect(cut.status == whole.status);
        expect(cut.requests.size() == whole.requests.size());
        for (std::size_t i = 0; i < cut.requests.size(); ++i) {
            const auto &a = cut.requests[i], &b = whole.requests[i];
            expect(a.method == b.method && a.path == b.path && a.query == b.query);
            expect(a.headers == b.headers && a.body == b.body && a.keep_alive == b.keep_alive);
        }
    }
    return 0;
}

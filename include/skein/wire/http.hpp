// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests and responses of HTTP/1.1 as values, and the parser that makes the first of bytes.
//
//     wire::http_parser parser;
//     parser.feed(bytes);                                   // as they come, in any pieces
//     const auto stage = parser.advance();                  // more, header, complete; or an error
//     if (stage && *stage == wire::http_stage::complete) answer(parser.take());
//
// The parser takes no request that two readers could understand differently: a length and an
// encoding together, a header twice that may stand once, folded or bare lines, other transfer
// encodings than `chunked` are errors. Bytes of the next request wait inside until take().
// Part of the component skein::http (Boost.Beast's headers are in its bodies only).

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::wire {

/// A name and its value, in the order in which they came.
using http_pairs = std::vector<std::pair<std::string, std::string>>;

/// What a client asks.
struct http_request {
    std::string method{};          ///< as sent: GET, POST, ...
    std::string path{};            ///< of the target, %XX decoded; "*" of OPTIONS * alone
    http_pairs query{};            ///< decoded; a name without `=` has an empty value
    http_pairs headers{};          ///< names in lower case
    std::string body{};            ///< chunks joined
    bool keep_alive = true;        ///< the client may send another request on the stream
    bool expects_continue = false; ///< the client waits for 100 before it sends the body

    /// The first value of that name (lower case); nothing if there is none.
    [[nodiscard]] const std::string* header(std::string_view name) const noexcept;
    [[nodiscard]] const std::string* parameter(std::string_view name) const noexcept;
};

/// What a server answers.
struct http_response {
    int status = 200;
    std::string type{}; ///< Content-Type; nothing: none is sent
    std::string body{};
    http_pairs headers{}; ///< further ones; characters that would end a line are replaced
};

/// A JSON text with a status.
[[nodiscard]] http_response json_response(std::string body, int status = 200);
/// The text of an error: {"code", "message", "cause", "hint"}.
[[nodiscard]] std::string json_of(const error& why);
/// An error with the status that fits its code, or the given one.
[[nodiscard]] http_response error_response(const error& why, int status = 0);

/// "Not Found" of 404; "Status" of one that has no name here.
[[nodiscard]] std::string_view reason_of(int status) noexcept;

/// Status line and headers, up to the empty line. `body_bytes`: what Content-Length says; nothing:
/// the end of the stream is the end of the body (or there is none).
[[nodiscard]] std::string head_of(const http_response& answer, bool keep_alive,
                                  const std::size_t* body_bytes);

/// Bounds of one request.
struct http_limits {
    std::size_t header_bytes = 16 << 10; ///< request line and headers; also a chunk's own line
    std::size_t headers = 100;           ///< also with those behind the chunks
    std::size_t body_bytes = 1 << 20;
};

/// How far the present request is.
enum class http_stage {
    more,    ///< bytes are missing
    header,  ///< told once: request() is there but for its body
    complete ///< take() gives it
};

namespace detail {
class http_machine;
}

/// Makes requests of bytes. After an error nothing more comes of it: the stream has to end.
class http_parser {
public:
    explicit http_parser(http_limits bounds = {});
    http_parser(http_parser&&) noexcept;
    http_parser& operator=(http_parser&&) noexcept;
    ~http_parser();

    /// Takes bytes; they are looked at by advance().
    void feed(byte_span bytes);

    /// Goes on with what is there.
    ///   errors  malformed, too_large, not_supported; then status() says what to answer
    [[nodiscard]] result<http_stage> advance();

    /// The present request, from the stage `header` on.
    [[nodiscard]] const http_request& request() const noexcept;
    /// The complete request; the next one may begin. A bug before the stage `complete`.
    [[nodiscard]] http_request take();

    /// 400, 413, 431, 501 or 505 after an error; 0 before.
    [[nodiscard]] int status() const noexcept;
    /// Nothing of a request has come.
    [[nodiscard]] bool is_idle() const noexcept;
    /// Bytes that wait for advance().
    [[nodiscard]] std::size_t buffered() const noexcept;

private:
    std::unique_ptr<detail::http_machine> machine_;
};

} // namespace skein::wire

#if SKEIN_HEADER_ONLY
#include <skein/wire/detail/http.ipp>
#include <skein/wire/detail/http_chunks.ipp>
#include <skein/wire/detail/http_text.ipp>
#endif

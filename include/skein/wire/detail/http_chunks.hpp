// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies that come in chunks (RFC 9112, 7.1): strict about lines, bounded in all it keeps and skips.

#include <skein/wire/http.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace skein::wire::detail {

/// What of a request must not be there, with the status that says so.
struct http_fault {
    int status = 400;
    errc code = errc::malformed;
    std::string why{};
};

/// Reads one chunked body. Extensions are skipped, and so are the headers behind the last chunk:
/// they must not change what was decided.
class http_chunks {
public:
    explicit http_chunks(http_limits bounds, std::size_t headers)
        : bounds_(bounds), headers_(headers) {}

    /// Takes what it can from the front of `in`, appends data to `body`.
    ///   result  bytes taken; fewer than all: the rest is half a line, or of the next request
    ///   errors  malformed, too_large: by fault()
    std::size_t take(std::string_view in, std::string& body);

    [[nodiscard]] bool is_done() const noexcept { return at_ == at::end; }
    [[nodiscard]] const http_fault* fault() const noexcept {
        return fault_.why.empty() ? nullptr : &fault_;
    }

private:
    enum class at { size, data, data_end, trailer, end };

    std::size_t take_data(std::string_view in, std::string& body);
    void line(std::string_view text, std::size_t held);
    void size_line(std::string_view text, std::size_t held);
    void fail(int status, errc code, std::string why) {
        fault_ = http_fault{status, code, std::move(why)};
    }

    http_limits bounds_;
    std::size_t headers_; // so far, of the request
    at at_ = at::size;
    std::size_t left_ = 0;    // of the present chunk
    std::size_t skipped_ = 0; // bytes that are no data
    http_fault fault_;
};

} // namespace skein::wire::detail

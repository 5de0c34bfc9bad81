// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines of sizes, data between them.

#include <skein/core/error.hpp>
#include <skein/wire/detail/http_chunks.hpp>

#include <algorithm>

#include <fmt/core.h>

namespace skein::wire::detail {

SKEIN_INLINE std::size_t http_chunks::take_data(std::string_view in, std::string& body) {
    const auto n = std::min(in.size(), left_);
    body.append(in.substr(0, n));
    left_ -= n;
    if (left_ == 0) at_ = at::data_end;
    return n;
}

SKEIN_INLINE std::size_t http_chunks::take(std::string_view in, std::string& body) {
    std::size_t used = 0;
    while (!is_done() && fault() == nullptr && used < in.size()) {
        const auto left = in.substr(used);
        if (at_ == at::data) {
            used += take_data(left, body);
            continue;
        }
        const auto end = left.find('\n');
        const auto line_bytes = end == std::string_view::npos ? left.size() : end + 1;
        if (line_bytes > bounds_.header_bytes) {
            fail(400, errc::malformed,
                 fmt::format("a line between its chunks has more than {} bytes",
                             bounds_.header_bytes));
            break;
        }
        if (end == std::string_view::npos) break;
        if (end == 0 || left[end - 1] != '\r') {
            fail(400, errc::malformed, "a line of its chunks ends without a carriage return");
            break;
        }
        used += line_bytes;
        skipped_ += line_bytes;
        line(left.substr(0, end - 1), body.size());
        // Empty lines, small chunks with long extensions: no way to send for ever.
        if (skipped_ > bounds_.body_bytes + bounds_.header_bytes)
            fail(413, errc::too_large, "its chunks are mostly no data");
    }
    return used;
}

SKEIN_INLINE void http_chunks::line(std::string_view text, std::size_t held) {
    const auto is_control = [](char c) {
        return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == '\x7f';
    };
    if (std::any_of(text.begin(), text.end(), is_control))
        return fail(400, errc::malformed, "a line of its chunks has control characters");
    if (at_ == at::size) return size_line(text, held);
    if (at_ == at::data_end) {
        if (!text.empty())
            return fail(400, errc::malformed, "a chunk is longer than its size says");
        at_ = at::size;
        return;
    }
    if (text.empty()) {
        at_ = at::end;
    } else if (++headers_ > bounds_.headers) {
        fail(431, errc::too_large, fmt::format("more than {} headers", bounds_.headers));
    } else if (text[0] == ' ' || text[0] == '\t' || text.find(':') == std::string_view::npos) {
        fail(400, errc::malformed, "what follows its chunks is no header");
    }
}

SKEIN_INLINE void http_chunks::size_line(std::string_view text, std::size_t held) {
    const auto digits = std::min(text.find_first_not_of("0123456789abcdefABCDEF"), text.size());
    if (digits == 0 || digits > 16)
        return fail(400, errc::malformed, "the size of a chunk is not a number");
    if (digits < text.size() && text[digits] != ';')
        return fail(400, errc::malformed, "something follows the size of a chunk");
    std::size_t size = 0;
    for (const char c : text.substr(0, digits)) {
        const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        size = size * 16 + static_cast<std::size_t>(digit);
    }
    if (size > bounds_.body_bytes - held)
        return fail(413, errc::too_large,
                    fmt::format("its body has more than {} bytes", bounds_.body_bytes));
    left_ = size;
    at_ = size == 0 ? at::trailer : at::data;
}

} // namespace skein::wire::detail

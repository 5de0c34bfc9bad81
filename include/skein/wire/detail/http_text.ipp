// SPDX-License-Identifier: Apache-2.0
#pragma once
// Targets of requests, and what responses look like.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/printable.hpp>
#include <skein/wire/detail/http_text.hpp>

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace skein::wire {
namespace detail {

SKEIN_INLINE std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

SKEIN_INLINE std::optional<std::string> unescape(std::string_view text, bool plus_is_space) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        char c = text[i];
        if (c == '%') {
            std::byte byte{};
            if (i + 2 >= text.size() || !from_hex(text.substr(i + 1, 2), {&byte, 1}))
                return std::nullopt;
            c = static_cast<char>(byte);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        out += c;
    }
    for (std::string_view left = out; !left.empty();) {
        const auto n = skein::detail::utf8_length(left);
        if (n == 0) return std::nullopt;
        const bool control = static_cast<unsigned char>(left[0]) < 0x20 || left[0] == '\x7f';
        if (control || skein::detail::is_c1(left.substr(0, n))) return std::nullopt;
        left.remove_prefix(n);
    }
    return out;
}

/// Every part on its own, so that a decoded slash or dots cannot make another path.
SKEIN_INLINE std::optional<std::string> read_path(std::string_view raw, std::string& into) {
    for (std::size_t at = 0; at < raw.size();) { // raw[at] is a slash
        const auto end = std::min(raw.find('/', at + 1), raw.size());
        const auto part = unescape(raw.substr(at + 1, end - at - 1), false);
        if (!part) return "a part of the path is not the %XX form of printable UTF-8";
        if (part->find('/') != std::string::npos || part->find('\\') != std::string::npos)
            return "a part of the path has a slash inside";
        if (*part == "." || *part == "..") return "the path has dots for a folder";
        if (part->empty() && end != raw.size()) return "the path has an empty part";
        into += '/';
        into += *part;
        at = end;
    }
    return std::nullopt;
}

SKEIN_INLINE std::optional<std::string> read_target(std::string_view target, http_request& into) {
    if (target == "*" && into.method == "OPTIONS") {
        into.path = "*";
        return std::nullopt;
    }
    if (target.empty() || target[0] != '/') return "the target does not begin with a slash";
    if (target.find('#') != std::string_view::npos) return "the target has a fragment";
    const auto mark = std::min(target.find('?'), target.size());
    if (auto wrong = read_path(target.substr(0, mark), into.path)) return wrong;
    for (auto left = target.substr(std::min(mark + 1, target.size())); !left.empty();) {
        const auto one = left.substr(0, left.find('&'));
        left.remove_prefix(std::min(one.size() + 1, left.size()));
        if (one.empty()) continue;
        const auto equals = std::min(one.find('='), one.size());
        auto name = unescape(one.substr(0, equals), true);
        auto value = unescape(one.substr(std::min(equals + 1, one.size())), true);
        if (!name || !value) return "the query is not the %XX form of printable UTF-8";
        into.query.emplace_back(std::move(*name), std::move(*value));
    }
    return std::nullopt;
}

SKEIN_INLINE const std::string* find_pair(const http_pairs& in, std::string_view name) noexcept {
    const auto found =
        std::find_if(in.begin(), in.end(), [&](const auto& p) { return p.first == name; });
    return found == in.end() ? nullptr : &found->second;
}

SKEIN_INLINE int status_of(errc code) noexcept {
    switch (code) {
    case errc::malformed:
    case errc::invalid_argument:
    case errc::usage: return 400;
    case errc::permission_denied: return 403;
    case errc::not_found: return 404;
    case errc::already_exists:
    case errc::mismatch: return 409;
    case errc::too_large: return 413;
    case errc::not_supported: return 501;
    case errc::refused:
    case errc::closed:
    case errc::reset:
    case errc::peer_lost:
    case errc::exhausted: return 503;
    case errc::timeout: return 504;
    case errc::disk_full: return 507;
    default: return 500;
    }
}

} // namespace detail

SKEIN_INLINE const std::string* http_request::header(std::string_view name) const noexcept {
    return detail::find_pair(headers, name);
}
SKEIN_INLINE const std::string* http_request::parameter(std::string_view name) const noexcept {
    return detail::find_pair(query, name);
}

SKEIN_INLINE http_response json_response(std::string body, int status) {
    http_response out;
    out.status = status;
    out.type = "application/json";
    out.body = std::move(body);
    return out;
}

SKEIN_INLINE std::string json_of(const error& why) {
    std::string out = "{\"code\": ";
    logging::append_json_string(out, to_string(why.code()));
    out += ", \"message\": ";
    logging::append_json_string(out,
                                why.where().empty() ? why.text() : why.where() + ": " + why.text());
    out += ", \"cause\": ";
    logging::append_json_string(out, why.cause());
    out += ", \"hint\": ";
    logging::append_json_string(out, why.hint());
    return out + "}\n";
}

SKEIN_INLINE http_response error_response(const error& why, int status) {
    return json_response(json_of(why), status != 0 ? status : detail::status_of(why.code()));
}

SKEIN_INLINE std::string_view reason_of(int status) noexcept {
    switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 303: return "See Other";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 421: return "Misdirected Request";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    default: return "Status";
    }
}

SKEIN_INLINE std::string head_of(const http_response& answer, bool keep_alive,
                                 const std::size_t* body_bytes) {
    std::string out = fmt::format("HTTP/1.1 {} {}\r\n", answer.status, reason_of(answer.status));
    const auto add = [&](std::string_view name, std::string_view value) {
        out += name;
        out += ": ";
        for (const char c : value)
            out += (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == '\x7f' ? ' ' : c;
        out += "\r\n";
    };
    if (!answer.type.empty()) add("Content-Type", answer.type);
    if (body_bytes != nullptr) add("Content-Length", fmt::format("{}", *body_bytes));
    for (const auto& [name, value] : answer.headers) add(name, value);
    add("Connection", keep_alive ? "keep-alive" : "close");
    return out + "\r\n";
}

} // namespace skein::wire

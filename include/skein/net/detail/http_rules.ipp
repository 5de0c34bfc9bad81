// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who may ask what: hosts, origins, keys, cookies.

#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sha256.hpp>
#include <skein/net/address.hpp>
#include <skein/net/detail/http_client.hpp>
#include <skein/wire/detail/http_text.hpp>

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE bool is_cookie_name(std::string_view text) {
    return text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_';
           });
}

SKEIN_INLINE void check_key(std::string_view key, const char* name) {
    const bool good =
        std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
    if (!good || (!key.empty() && key.size() < 16))
        throw error(errc::invalid_argument,
                    fmt::format("the key to {} is no key: at least 16 printable characters without "
                                "spaces",
                                name));
}

/// What a login link gives to a browser. It is good for the host and port that the link was opened
/// at, and so for pages of that origin: browsers send cookies to all ports of a host.
SKEIN_INLINE std::string cookie_value(std::string_view key, std::string_view cluster,
                                      std::string_view right, std::string_view host) {
    if (key.empty()) return {};
    const auto label = fmt::format("skein/2 http cookie {} {} {}", right, cluster,
                                   wire::detail::lower(std::string(host)));
    return to_hex(hmac_sha256(as_bytes(key), as_bytes(label)));
}

/// Equal, and not empty.
SKEIN_INLINE bool is_key(std::string_view given, std::string_view key) noexcept {
    return equal_constant_time(as_bytes(given), as_bytes(key)) && !key.empty();
}

SKEIN_INLINE std::string_view trim(std::string_view text) noexcept {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

/// The name in front of the port.
SKEIN_INLINE std::string_view without_port(std::string_view host) {
    const auto colon = host.rfind(':');
    if (colon == std::string_view::npos || host.ends_with(']')) return host;
    const auto port = host.substr(colon + 1);
    const bool digits =
        !port.empty() && port.size() <= 5 &&
        std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
    return digits ? host.substr(0, colon) : host;
}

SKEIN_INLINE wire::http_response refusal(int status, errc code, std::string text,
                                         std::string hint) {
    auto out =
        wire::error_response(error(code, std::move(text)).with_hint(std::move(hint)), status);
    if (status == 401) out.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"skein\"");
    return out;
}

} // namespace detail

SKEIN_INLINE http_peer peer_of(const stream& of) {
    http_peer out;
    out.name = of.peer_name();
    const auto host = of.peer_host();
    out.loopback = host.empty() ? of.is_local() : address::tcp(host, 0).is_loopback();
    return out;
}

SKEIN_INLINE bool http_server::is_our_host(std::string_view host) const {
    const auto given = wire::detail::lower(host);
    const auto name = detail::without_port(given);
    constexpr std::array<std::string_view, 3> loopback = {"localhost", "127.0.0.1", "[::1]"};
    if (std::find(loopback.begin(), loopback.end(), name) != loopback.end()) return true;
    return std::any_of(how_.hosts.begin(), how_.hosts.end(), [&](const std::string& allowed) {
        const auto ours = wire::detail::lower(allowed);
        return ours == given || ours == name;
    });
}

SKEIN_INLINE std::string http_server::cookie_of(http_right right, std::string_view host) const {
    const bool changes = right == http_right::change;
    return detail::cookie_value(changes ? how_.keys.submit : how_.keys.view, how_.cluster,
                                changes ? "change" : "view", host);
}

SKEIN_INLINE http_right http_server::right_of(const wire::http_request& r, bool& by_cookie,
                                              bool& wrong) const {
    const auto best = [](bool changes, bool views) {
        return changes ? http_right::change : views ? http_right::view : http_right::open;
    };
    if (const auto* given = r.header("authorization")) {
        constexpr std::string_view scheme = "bearer ";
        const std::string_view text = *given;
        if (wire::detail::lower(text.substr(0, scheme.size())) != scheme) {
            wrong = true;
            return http_right::open;
        }
        const auto key = detail::trim(text.substr(scheme.size()));
        const bool changes = detail::is_key(key, how_.keys.submit);
        const bool views = detail::is_key(key, how_.keys.view);
        wrong = !changes && !views;
        return best(changes, views);
    }
    http_right found = http_right::open;
    const auto* const host = r.header("host");
    const std::string_view at = host != nullptr ? std::string_view(*host) : std::string_view();
    for (const auto& [name, value] : r.headers) {
        if (name != "cookie") continue;
        for (std::string_view left = value; !left.empty();) {
            const auto one = detail::trim(left.substr(0, left.find(';')));
            left.remove_prefix(std::min(left.find(';'), left.size() - 1) + 1);
            const auto equals = one.find('=');
            if (equals == std::string_view::npos || one.substr(0, equals) != cookie_name_) continue;
            const auto held = one.substr(equals + 1);
            const bool changes = detail::is_key(held, cookie_of(http_right::change, at));
            const bool views = detail::is_key(held, cookie_of(http_right::view, at));
            found = std::max(found, best(changes, views));
            wrong = wrong || (!changes && !views);
        }
    }
    by_cookie = found != http_right::open;
    wrong = wrong && !by_cookie;
    return found;
}

/// The rules that need no route; nothing: they hold.
SKEIN_INLINE std::optional<wire::http_response> http_server::check_source(
    const wire::http_request& r) const {
    const auto* host = r.header("host");
    if (host == nullptr || !is_our_host(*host)) {
        return detail::refusal(403, errc::permission_denied,
                               "this server does not answer for the host " +
                                   (host != nullptr ? *host : std::string("(none)")),
                               "use localhost, this host's own name, or the name after --listen");
    }
    const auto* origin = r.header("origin");
    const auto ours = wire::detail::lower(*host);
    if (origin != nullptr) {
        const auto theirs = wire::detail::lower(*origin);
        if (theirs != "http://" + ours && theirs != "https://" + ours)
            return detail::refusal(403, errc::permission_denied,
                                   "a page of " + *origin + " may not ask this server",
                                   "open the dashboard itself; there is no access for other sites");
    }
    return std::nullopt;
}

/// The rules of a route that is there; nothing: they hold.
SKEIN_INLINE std::optional<wire::http_response> http_server::check_right(
    const wire::http_request& r, const http_peer& from, http_right needed, http_right given,
    bool by_cookie) const {
    if (needed == http_right::open) return std::nullopt;
    const auto* site = r.header("sec-fetch-site");
    if (site != nullptr && *site != "same-origin" && *site != "none")
        return detail::refusal(403, errc::permission_denied,
                               "a page of another site may not ask for this",
                               "open the dashboard itself; there is no access for other sites");
    if (given < needed)
        return detail::refusal(403, errc::permission_denied,
                               "this key may only look; what changes something needs the key to "
                               "submit",
                               "use the program skein on the head's host");
    if (needed != http_right::change) return std::nullopt;
    const bool forwarded = r.header("x-forwarded-for") != nullptr ||
                           r.header("forwarded") != nullptr || r.header("via") != nullptr;
    if (!from.loopback || forwarded)
        return detail::refusal(403, errc::permission_denied,
                               "what changes something is not taken over HTTP from another host (" +
                                   from.name + ")",
                               "use the program skein, which sends no key over the network");
    if (by_cookie && r.header("origin") == nullptr)
        return detail::refusal(403, errc::permission_denied,
                               "a cookie alone changes nothing: the request names no Origin",
                               "send the key as Authorization: Bearer");
    return std::nullopt;
}

SKEIN_INLINE http_server::verdict http_server::judge(const wire::http_request& r,
                                                     const http_peer& from) {
    verdict out;
    out.is_head = r.method == "HEAD";
    const auto refuse = [&](wire::http_response why) {
        out.reply = std::move(why);
        out.is_refusal = true;
        return std::move(out);
    };
    if (auto why = check_source(r)) return refuse(std::move(*why));
    out.to = routes_.find(r.method, r.path);
    const auto needed = out.to.found != nullptr ? out.to.found->right : http_right::view;
    bool by_cookie = false, wrong = false;
    out.right = right_of(r, by_cookie, wrong);
    out.has_key = out.right != http_right::open;
    if (needed != http_right::open && !out.has_key)
        return refuse(detail::refusal(
            401, errc::permission_denied, wrong ? "the key is not one of this cluster" : "no key",
            "open a link of `skein dashboard`, or send Authorization: Bearer with the key"));
    const bool options = r.method == "OPTIONS";
    if (out.to.allowed.empty() && !(options && r.path == "*"))
        return refuse(detail::refusal(404, errc::not_found, "there is nothing at " + r.path,
                                      "the paths begin with /api/; / is the page"));
    if (options) {
        out.reply = wire::http_response{204, {}, {}, {}};
        out.reply->headers.emplace_back("Allow", out.to.allowed.empty() ? "OPTIONS, GET, HEAD"
                                                                        : out.to.allowed);
        return out;
    }
    if (out.to.found == nullptr) {
        auto why = detail::refusal(405, errc::not_supported,
                                   r.path + " does not take the method " + r.method,
                                   "it takes " + out.to.allowed);
        why.headers.emplace_back("Allow", out.to.allowed);
        return refuse(std::move(why));
    }
    if (auto why = check_right(r, from, needed, out.right, by_cookie))
        return refuse(std::move(*why));
    if (out.is_head) out.reply = wire::http_response{};
    return out;
}

// --- login links ------------------------------------------------------------------------------

SKEIN_INLINE std::string http_server::login_link(http_right right) {
    constexpr std::size_t most = 16;
    if (cookie_of(right, {}).empty() || right == http_right::open)
        throw error(errc::invalid_argument,
                    fmt::format("there is no key to {} on this server", to_string(right)));
    std::array<std::byte, 32> once{};
    loop::current().random().fill(once);
    if (logins_.size() == most) logins_.pop_front();
    logins_.push_back(
        {to_hex(once), right, deadline_after(loop::current().now(), how_.login_within)});
    return "/login?once=" + logins_.back().once;
}

SKEIN_INLINE wire::http_response http_server::log_in(const wire::http_request& r) {
    const auto now = loop::current().now();
    std::erase_if(logins_, [&](const login& l) { return l.until <= now; });
    const auto* once = r.parameter("once");
    const auto found = once == nullptr
                           ? logins_.end()
                           : std::find_if(logins_.begin(), logins_.end(), [&](const login& l) {
                                 return detail::is_key(*once, l.once);
                             });
    if (found == logins_.end())
        return detail::refusal(401, errc::permission_denied,
                               "this link has been used, or is too old",
                               "ask for a new one: skein dashboard");
    wire::http_response out;
    out.status = 303;
    out.headers.emplace_back("Location", "/");
    out.headers.emplace_back("Set-Cookie",
                             fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict", cookie_name_,
                                         cookie_of(found->right, *r.header("host"))));
    logins_.erase(found);
    return out;
}

} // namespace skein::net

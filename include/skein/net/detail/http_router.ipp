// SPDX-License-Identifier: Apache-2.0
#pragma once
// Patterns, part by part.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>

#include <algorithm>

namespace skein::net {
namespace detail {

SKEIN_INLINE std::vector<std::string> parts_of(std::string_view path) {
    std::vector<std::string> out;
    while (!path.empty()) {
        path.remove_prefix(1); // a slash
        const auto one = path.substr(0, path.find('/'));
        path.remove_prefix(one.size());
        if (!one.empty() || !path.empty()) out.emplace_back(one);
    }
    return out;
}

SKEIN_INLINE bool is_open(std::string_view part) {
    return part.size() > 2 && part.front() == '{' && part.back() == '}';
}

/// Two patterns that some path fits both, where neither is the more exact one.
SKEIN_INLINE bool same_pattern(const std::vector<std::string>& a,
                               const std::vector<std::string>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
        return x == y || (is_open(x) && is_open(y));
    });
}

SKEIN_INLINE bool fits(const std::vector<std::string>& pattern,
                       const std::vector<std::string>& path) {
    return std::equal(pattern.begin(), pattern.end(), path.begin(), path.end(),
                      [](const auto& p, const auto& x) { return p == x || is_open(p); });
}

} // namespace detail

SKEIN_INLINE std::string_view to_string(http_right right) noexcept {
    switch (right) {
    case http_right::open: return "open";
    case http_right::view: return "view";
    case http_right::change: return "change";
    }
    return "unknown";
}

SKEIN_INLINE const std::string& http_call::part(std::string_view name) const {
    const auto found =
        std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.first == name; });
    SKEIN_CHECK(found != parts.end(), "the route has no part of the name {}", name);
    return found->second;
}

SKEIN_INLINE void http_router::add(std::string method, std::string pattern, http_right right,
                                   http_handler handler) {
    if (pattern.empty() || pattern[0] != '/')
        throw error(errc::invalid_argument,
                    "the route " + pattern + " does not begin with a slash");
    const bool reads = method == "GET";
    if (reads && right == http_right::change)
        throw error(errc::invalid_argument, "GET " + pattern + " must not change anything")
            .with_hint("browsers and caches send GET on their own: make it a POST");
    entry e{{std::move(method), std::move(pattern), right}, {}, std::move(handler)};
    e.parts = detail::parts_of(e.shown.pattern);
    for (const auto& other : entries_)
        if (other.shown.method == e.shown.method && detail::same_pattern(other.parts, e.parts))
            throw error(errc::invalid_argument,
                        e.shown.method + " " + e.shown.pattern + " is there already");
    entries_.push_back(std::move(e));
}

SKEIN_INLINE std::vector<http_router::route> http_router::routes() const {
    std::vector<route> out;
    for (const auto& e : entries_) out.push_back(e.shown);
    return out;
}

SKEIN_INLINE http_router::match http_router::find(std::string_view method, std::string_view path) {
    match out;
    if (!path.starts_with('/')) return out; // OPTIONS *
    const auto parts = detail::parts_of(path);
    const auto open_parts = [](const entry& e) {
        return std::count_if(e.parts.begin(), e.parts.end(), detail::is_open);
    };
    entry* best = nullptr;
    const std::string_view wanted = method == "HEAD" ? "GET" : method;
    for (auto& e : entries_) {
        if (!detail::fits(e.parts, parts)) continue;
        if (out.allowed.find(e.shown.method) == std::string::npos) {
            out.allowed += out.allowed.empty() ? "OPTIONS, " : ", ";
            out.allowed += e.shown.method == "GET" ? "GET, HEAD" : e.shown.method;
        }
        if (e.shown.method != wanted) continue;
        if (best == nullptr || open_parts(e) < open_parts(*best)) best = &e;
    }
    if (best == nullptr) return out;
    out.found = &best->shown;
    out.handler = &best->handler;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto& p = best->parts[i];
        if (detail::is_open(p)) out.parts.emplace_back(p.substr(1, p.size() - 2), parts[i]);
    }
    return out;
}

} // namespace skein::net

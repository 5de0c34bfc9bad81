// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/access.hpp.

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>
#include <skein/spmd/detail/token_file.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE net::address parse_head_address(std::string_view text, std::uint16_t port) {
    const auto bad = [&](std::string_view why) {
        return error(errc::usage, fmt::format("the head's address {}: {}", text, why))
            .with_hint(fmt::format("e.g. node-1:{0}, 10.0.0.1, [fd00::1]:{0}", default_port));
    };
    if (text.find("://") != text.npos)
        throw bad("a head has no URL: only its host and port are given");
    for (const std::string_view prefix : {"tcp:", "unix:", "unix-abstract:", "sim:"}) {
        if (!text.starts_with(prefix)) continue;
        auto read = net::address::parse(text);
        if (!read) throw bad(read.error().text());
        return *read;
    }
    const bool has_port =
        text.starts_with('[') ? text.find("]:") != text.npos : text.find(':') != text.npos;
    if (text.empty()) throw bad("it is empty");
    if (!text.starts_with('[') && std::count(text.begin(), text.end(), ':') > 1)
        throw bad("an IPv6 address needs brackets");
    if (text.starts_with(':'))
        throw bad("there is no host before the port; who listens on all addresses writes *" +
                  std::string(text));
    auto read = net::address::parse(has_port ? fmt::format("tcp:{}", text)
                                             : fmt::format("tcp:{}:{}", text, port));
    if (!read) throw bad(read.error().text());
    return *read;
}

SKEIN_INLINE net::address head_address_or_own(std::string_view text) {
    if (text.empty()) return net::address::tcp(net::own_loopback(), default_port);
    return parse_head_address(text);
}

SKEIN_INLINE std::string find_head_address(std::string_view flag) {
    if (!flag.empty()) return std::string(flag);
    return spmd::process_environment()("SKEIN_ADDRESS").value_or("");
}

namespace detail {

/// Where a token comes from, in the order in which it is looked for.
inline constexpr std::string_view token_sources =
    "--token-file, SKEIN_TOKEN, SKEIN_TOKEN_FILE, ~/.config/skein/token";

/// from: what has named the file.
[[nodiscard]] inline net::token token_in(const std::string& path, std::string_view from) {
    std::string text;
    try {
        text = spmd::detail::read_token_file(path);
    } catch (const error& why) {
        throw error(why.code(), fmt::format("{}: {}", from, why.text()))
            .with_hint(why.hint().empty()
                           ? "copy the token file of the head's host there, or name another one: "
                             "skein head prints where its own is, and makes it if there is none"
                           : why.hint());
    }
    auto read = net::token::from_text(text);
    if (read) return *read;
    throw error(errc::malformed,
                fmt::format("{}: token file {}: {}", from, path, read.error().text()))
        .with_hint(read.error().hint().empty() ? "skein head makes one when there is no file"
                                               : read.error().hint());
}

} // namespace detail

SKEIN_INLINE std::string token_source(const std::string& file) {
    const auto read = spmd::process_environment();
    if (!file.empty()) return file;
    if (read(spmd::token_variable)) return "SKEIN_TOKEN";
    return read("SKEIN_TOKEN_FILE").value_or(spmd::detail::own_token_file(read));
}

SKEIN_INLINE net::token find_token(const std::string& file) {
    const auto where = token_source(file);
    const auto read = spmd::process_environment();
    if (!file.empty()) return detail::token_in(file, "--token-file");
    if (const auto given = read(spmd::token_variable)) {
        auto token = net::token::from_text(*given);
        if (token) return *token;
        throw error(errc::malformed, fmt::format("SKEIN_TOKEN: {}", token.error().text()))
            .with_hint("it is the text of the token file of the head's host, or of a key");
    }
    if (const auto named = read("SKEIN_TOKEN_FILE"))
        return detail::token_in(*named, "SKEIN_TOKEN_FILE");
    if (where.empty() || !std::filesystem::exists(where))
        throw error(errc::not_found, where.empty()
                                         ? "no token for the cluster: HOME is not set"
                                         : "no token for the cluster: there is no file " + where)
            .with_hint(fmt::format("copy the token file of the head's host to the same place here "
                                   "(skein head prints its name); a token is looked for in {}",
                                   detail::token_sources));
    return detail::token_in(where, "the token of this user");
}

namespace detail {

/// From which keys can be derived.
[[nodiscard]] inline net::token token_itself(net::token found, std::string_view who,
                                             const std::string& file) {
    if (!found.is_derived()) return found;
    throw error(errc::permission_denied,
                fmt::format("{} needs the cluster's token; in {} is {}", who, token_source(file),
                            net::to_string(found.name().kind)))
        .with_hint("name the token's file with --token-file, on the head's host");
}

} // namespace detail

SKEIN_INLINE net::token find_or_make_token(const std::string& file) {
    if (!file.empty()) {
        if (!std::filesystem::exists(file)) spmd::detail::make_token_file(file);
        return detail::token_itself(detail::token_in(file, "--token-file"), "a head", file);
    }
    const auto where = token_source(file);
    const bool is_given = spmd::process_environment()(spmd::token_variable).has_value();
    if (!is_given && !where.empty() && !std::filesystem::exists(where))
        spmd::detail::make_token_file(where);
    return detail::token_itself(find_token(file), "a head", file);
}

SKEIN_INLINE std::string make_token(const std::string& file) {
    if (file.empty()) return net::token::generate().to_hex();
    if (!spmd::detail::make_token_file(file))
        throw error(errc::already_exists, fmt::format("{} is there already", file))
            .with_hint("a token that others know is not written over: name another file, or "
                       "delete this one");
    return detail::token_in(file, "--file").to_hex();
}

SKEIN_INLINE std::string make_key(std::string_view kind, const std::string& token_file,
                                  const std::string& file) {
    const auto of = kind == "submit" ? net::key_kind::submit : net::key_kind::view;
    if (of == net::key_kind::view && kind != "view")
        throw error(errc::usage, fmt::format("there is no key for {}", kind))
            .with_hint("submit: jobs; view: to look");
    const auto token = detail::token_itself(
        find_token(token_file), fmt::format("who makes {}", net::to_string(of)), token_file);
    const auto text = token.derive({of, 0}).to_text();
    if (!file.empty() && !spmd::detail::make_token_file(file, text))
        throw error(errc::already_exists, fmt::format("{} is there already", file))
            .with_hint("name another file, or delete this one");
    return text;
}

} // namespace skein::cluster

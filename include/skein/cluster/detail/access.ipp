// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/access.hpp.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/token_file.hpp>
#include <skein/cluster/environment.hpp>
#include <skein/cluster/meeting.hpp>
#include <skein/core/error.hpp>

#include <filesystem>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE net::address parse_head_address(std::string_view text, std::uint16_t port) {
    const auto bad = [&](std::string_view why) {
        return error(errc::usage, fmt::format("the head's address {}: {}", text, why))
            .with_hint(fmt::format("e.g. node-1:{0}, 10.0.0.1, [fd00::1]:{0}", default_port));
    };
    for (const std::string_view prefix : {"tcp:", "unix:", "unix-abstract:", "sim:"}) {
        if (!text.starts_with(prefix)) continue;
        auto read = net::address::parse(text);
        if (!read) throw bad(read.error().text());
        return *read;
    }
    const bool has_port =
        text.starts_with('[') ? text.find("]:") != text.npos : text.find(':') != text.npos;
    auto read = net::address::parse(has_port ? fmt::format("tcp:{}", text)
                                             : fmt::format("tcp:{}:{}", text, port));
    if (!read) throw bad(read.error().text());
    return *read;
}

SKEIN_INLINE std::string find_head_address(std::string_view flag) {
    if (!flag.empty()) return std::string(flag);
    return process_environment()("SKEIN_ADDRESS").value_or("");
}

namespace detail {

[[nodiscard]] inline net::token token_in(const std::string& path) {
    auto read = net::token::from_hex(read_token_file(path));
    if (read) return *read;
    throw error(errc::malformed, fmt::format("token file {}: {}", path, read.error().text()))
        .with_hint("a token is 64 hexadecimal digits; skein head makes one when there is no file");
}

} // namespace detail

SKEIN_INLINE std::string token_source(const std::string& file) {
    const auto read = process_environment();
    if (!file.empty()) return file;
    if (read(token_variable)) return "SKEIN_TOKEN";
    return read("SKEIN_TOKEN_FILE").value_or(detail::own_token_file(read));
}

SKEIN_INLINE net::token find_token(const std::string& file) {
    const auto where = token_source(file);
    const auto read = process_environment();
    if (!file.empty()) return detail::token_in(file);
    if (!read(token_variable) && !read("SKEIN_TOKEN_FILE") && !std::filesystem::exists(where))
        throw error(errc::not_found, "no token for the cluster: there is no file " + where)
            .with_hint("copy the token file of the head's host to the same place here (skein head "
                       "prints its name), or set SKEIN_TOKEN_FILE");
    return group_token(read);
}

SKEIN_INLINE net::token find_or_make_token(const std::string& file) {
    if (file.empty()) return group_token();
    if (!std::filesystem::exists(file)) detail::make_token_file(file);
    return detail::token_in(file);
}

} // namespace skein::cluster

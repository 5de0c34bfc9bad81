// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether this program's head answers browsers: it does where it was built with Boost.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>
#include <skein/net/token.hpp>
#include <skein/program/program.hpp>

#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace skein_program {

/// What program::head_program::web is to be; empty: no head of this program answers browsers.
[[nodiscard]] decltype(skein::program::head_program::web) web_of_this_program();

/// The key of scripts that show (view) or change (submit) what there is, as Authorization: Bearer.
/// Derived from the key of that kind, so that neither this one nor the token ever go over HTTP.
///   errors  permission_denied: `secret` is another key
[[nodiscard]] inline std::string http_key(const skein::net::token& secret,
                                          skein::net::key_kind of) {
    const auto kind = secret.name().kind;
    if (secret.is_derived() && kind != of)
        throw skein::error(skein::errc::permission_denied,
                           fmt::format("{} gives no {} key for HTTP", skein::net::to_string(kind),
                                       skein::net::key_kind_names[static_cast<std::size_t>(of)]))
            .with_hint("use the cluster's token, or a key of that kind (skein token --for)");
    const auto key = secret.derive({of, 0});
    return skein::to_hex(skein::hmac_sha256(key.bytes(), skein::as_bytes("skein http")));
}

} // namespace skein_program

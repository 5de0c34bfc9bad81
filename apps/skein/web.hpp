// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether this program's head answers browsers: it does where it was built with Boost.

#include <skein/core/bytes.hpp>
#include <skein/core/sha256.hpp>
#include <skein/net/token.hpp>
#include <skein/program/program.hpp>

#include <string>
#include <string_view>

namespace skein_program {

/// What program::head_program::web is to be; empty: no head of this program answers browsers.
[[nodiscard]] decltype(skein::program::head_program::web) web_of_this_program();

/// The key of scripts that show ("view") or change ("submit") what there is, as Authorization:
/// Bearer. Derived, so that the token itself never goes over HTTP.
[[nodiscard]] inline std::string http_key(const skein::net::token& secret, std::string_view what) {
    return skein::to_hex(
        skein::hmac_sha256(secret.bytes(), skein::as_bytes("skein http"), skein::as_bytes(what)));
}

} // namespace skein_program

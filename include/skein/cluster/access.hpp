// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a program finds its cluster: the head's address and the token, from flags, environment or a
// file.
//
// The token never stands on a command line, where others could read it. It, or a key that was derived
// from it for less (make_key), is looked for in SKEIN_TOKEN, in the file that --token-file or
// SKEIN_TOKEN_FILE name, and in the user's own file, ~/.config/skein/token, which a head makes when
// there is none: hosts with a common home folder need nothing else.

#include <skein/core/config.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace skein::cluster {

/// Where a head listens if nothing is said.
inline constexpr std::uint16_t default_port = 7117;

/// Reads "HOST:PORT", "HOST", or an address as net::address has it. `port`: what is meant where
/// none is named.
///   errors  usage
[[nodiscard]] net::address parse_head_address(std::string_view text,
                                              std::uint16_t port = default_port);

/// The same; empty: the default port of this host's loopback.
///   errors  usage
[[nodiscard]] net::address head_address_or_own(std::string_view text);

/// --address, or SKEIN_ADDRESS; empty: neither is set.
[[nodiscard]] std::string find_head_address(std::string_view flag);

/// Where the token comes from, for messages: a file, or SKEIN_TOKEN. `file`: --token-file, or
/// empty.
[[nodiscard]] std::string token_source(const std::string& file);

/// The token of the cluster that this program shall join, or a key of it. `file`: --token-file, or
/// empty.
///   errors  not_found (there is none; the hint says how to get it), permission_denied (others may
///           read the file), malformed
[[nodiscard]] net::token find_token(const std::string& file);

/// The same for a head, which needs the token itself: a file that is named or is the user's own, and
/// is not there, is made; only this user can read it.
///   errors  permission_denied: a key is there in the token's place
[[nodiscard]] net::token find_or_make_token(const std::string& file);

/// The 64 digits of a new token. `file`: where they are written, which must be a new one; empty:
/// nowhere.
///   errors  already_exists, io
[[nodiscard]] std::string make_token(const std::string& file);

/// The text of the key of that kind, "submit" or "view", to be used where a token is. `token_file`:
/// --token-file, or empty. `file`: as for make_token.
///   errors  those of find_token; permission_denied: what is there is a key, and no token; usage;
///           already_exists; io
[[nodiscard]] std::string make_key(std::string_view kind, const std::string& token_file,
                                   const std::string& file);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/access.ipp>
#endif

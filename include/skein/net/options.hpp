// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who we are and what we ask of a peer: given to connection::connect, connection::accept, endpoint.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/net/limits.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace skein::net {

/// Who a peer says it is; exchanged in the handshake, after both have proven the token.
struct identity {
    std::string name{};
    std::uint64_t build_id = 0;      ///< of the program
    std::uint64_t registry_hash = 0; ///< of its remote functions and message types
    std::int64_t pid = 0;
    std::string host{};
    std::string purpose{}; ///< what the connection is for; both sides must say the same
    byte_buffer extra{};   ///< the upper layer's own bytes, at most limits::max_identity in all
    key_name key{};        ///< that it has proven; what it says of that itself is not looked at
};

/// "name (pid 7 at host)", without what the identity does not tell.
[[nodiscard]] std::string to_string(const identity& who);

/// How a connection is made; both sides give one.
struct connection_options {
    /// The token, or a derived key. Who accepts with a token takes that alone, unless `admits` is
    /// there; with a derived key, that key alone.
    token secret{};
    /// Of who accepts with a token: the peer has proven the key of this name. Nothing: it is let in;
    /// else what it is told. Empty: no derived key is taken. Asked for each handshake.
    std::function<std::optional<error>(const key_name&)> admits{};
    identity self{};
    limits bounds{};
    keep_alive alive{};
    bool require_same_build = false; ///< refuse a peer of another build_id or registry_hash
    bool checksum_bodies = true;     ///< CRC32C of bodies we send (headers always have one)
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/options.ipp>
#endif

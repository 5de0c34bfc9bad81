// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mutual proof of the token, then the exchange of identities; before anything else is decoded.
//
//   connecting side                          accepting side
//   hello: magic version role nonce   --->
//                                     <---   hello, proof
//   status, proof, identity, mac      --->
//                                     <---   status, identity, mac
//
// proof = HMAC-SHA256(token, label of the role, both hellos): the nonces make it fresh, the label
// keeps a peer from sending our own proof back. The token never travels. Before the peer's proof is
// checked, everything fits into fixed buffers. Foreign bytes are refused at the first that differs.

#include <skein/core/task.hpp>
#include <skein/net/options.hpp>
#include <skein/net/stream.hpp>

#include <cstdint>

namespace skein::net {

inline constexpr std::uint16_t protocol_version = 1;

/// Which end of the stream this is.
enum class side : std::uint16_t { connecting = 1, accepting = 2 };

/// Shakes hands on a fresh stream; both must outlive the task. The caller sets the deadline.
///   result  the peer's identity
///   errors  permission_denied (token), malformed (foreign bytes), mismatch (version, build),
///           too_large, reset
task<identity> handshake(stream& with, side mine, const connection_options& options);

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/handshake.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mutual proof of the token, then the exchange of identities; before anything else is decoded.
//
//   connecting side                          accepting side
//   hello: magic version key role nonce --->
//                                     <---   hello, proof
//   status, proof, identity, mac      --->
//                                     <---   status, identity, mac
//
// A hello names the key that its side holds (key_name.hpp), and the accepting side's the one that it
// will use: that of the peer, which it derives from its token, or its own one. proof =
// HMAC-SHA256(key, label of the role, both hellos): the nonces make it fresh, the label keeps a peer
// from sending our own proof back. The key never travels. Before the peer's proof is
// checked, everything fits into fixed buffers. Foreign bytes are refused at the first that differs,
// but for one wrong bit. Each part carries a CRC, the identities their mac: what the way has
// damaged is errc::corrupt and worth another try, and never taken for another token, build or
// protocol. The identities name a purpose, so that two protocols that share a token never take each
// other's streams.

#include <skein/core/task.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>
#include <skein/net/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace skein::net {

class admission;

/// Both ends must have the same one, or the handshake refuses.
inline constexpr std::uint16_t protocol_version = 5;
/// Its hello had no checksum. One wrong bit makes no other version of ours of it.
inline constexpr std::uint16_t version_without_checksum = 2;

/// Which end of the stream this is.
enum class side : std::uint16_t { connecting = 1, accepting = 2 };

/// The bytes of the first message, in which both sides are told from other protocols.
inline constexpr std::size_t hello_bytes = 48;

/// Shakes hands on a fresh stream; both must outlive the task. The caller sets the deadline.
///   first   what the caller has read of the stream already, at most hello_bytes; valid until the
///           end
///   place   of the stream at its acceptor, which hears when the peer's first message is whole
///   result  the peer's identity
///   errors  permission_denied (token, or a key that opens nothing here), malformed (foreign
///           bytes), mismatch (version, purpose, build), corrupt (damaged on the way), too_large, reset
task<identity> handshake(stream& with, side mine, const connection_options& options,
                         byte_span first = {}, admission* place = nullptr);

/// The same within limits::handshake_deadline; when it fails, the stream is closed and the error
/// names the peer. The stream must outlive the task.
///   errors  those of handshake; timeout
task<identity> authenticate(stream& with, side mine, connection_options options,
                            byte_buffer first = {}, admission* place = nullptr);

/// A stream whose peer has proven the token, or the key that peer.key names.
struct authenticated_stream {
    std::unique_ptr<net::stream> stream;
    identity peer;
};

/// Connects once and shakes hands. Only the handshake is bounded: put a with_timeout around it, or
/// use dial_patiently (dial.hpp). `via` must live until then.
///   errors  those of network::connect and authenticate
task<authenticated_stream> dial(network& via, address to, connection_options options);

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/handshake.ipp>
#endif

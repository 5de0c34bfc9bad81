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

#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/task.hpp>
#include <skein/net/options.hpp>
#include <skein/net/stream.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include <fmt/core.h>

namespace skein::net {

inline constexpr std::uint16_t protocol_version = 1;

/// Which end of the stream this is.
enum class side : std::uint16_t { connecting = 1, accepting = 2 };

namespace detail {

enum class handshake_status : std::uint32_t { good = 0, token_differs = 1, build_differs = 2 };

/// magic(8) version(2) zero(2) role(2) zero(2) nonce(32)
struct hello {
    static constexpr std::size_t bytes = 48;
    static constexpr std::array<char, 8> magic = {'s', 'k', 'e', 'i', 'n', '\r', '\n', '\0'};
    std::array<std::byte, bytes> raw{};

    void fill(side mine, std::uint16_t version, random_source& random) {
        std::memcpy(raw.data(), magic.data(), magic.size());
        store_le(raw.data() + 8, version);
        store_le(raw.data() + 12, static_cast<std::uint16_t>(mine));
        random.fill(mut_byte_span(raw).subspan(16));
    }
    [[nodiscard]] std::uint16_t version() const noexcept {
        return load_le<std::uint16_t>(raw.data() + 8);
    }
    [[nodiscard]] std::uint16_t role() const noexcept {
        return load_le<std::uint16_t>(raw.data() + 12);
    }
};

/// What comes with each side's verdict: status(4) proof(32) identity length(4).
struct verdict {
    static constexpr std::size_t bytes = 40;
    std::array<std::byte, bytes> raw{};

    void fill(handshake_status status, byte_span proof, std::size_t identity_bytes) {
        store_le(raw.data(), static_cast<std::uint32_t>(status));
        std::copy(proof.begin(), proof.end(), raw.begin() + 4);
        store_le(raw.data() + 36, static_cast<std::uint32_t>(identity_bytes));
    }
    [[nodiscard]] std::uint32_t status() const noexcept {
        return load_le<std::uint32_t>(raw.data());
    }
    [[nodiscard]] byte_span proof() const noexcept { return byte_span(raw).subspan(4, 32); }
    [[nodiscard]] std::size_t identity_bytes() const noexcept {
        return load_le<std::uint32_t>(raw.data() + 36);
    }
};

/// "an HTTP request", "a TLS client", or the first bytes.
inline std::string describe_foreign(byte_span first) {
    const auto text = as_text(first);
    for (const char* verb :
         {"GET ", "POST ", "HEAD ", "PUT ", "OPTIONS ", "DELETE ", "CONNECT ", "HTTP/"}) {
        if (text.starts_with(
                std::string_view(verb).substr(0, std::max<std::size_t>(text.size(), 3)))) {
            return "it looks like HTTP";
        }
    }
    if (first.size() >= 2 && first[0] == std::byte{0x16} && first[1] == std::byte{0x03}) {
        return "it looks like TLS";
    }
    if (text.starts_with("SSH-")) return "it looks like SSH";
    return "it begins with the bytes " +
           skein::to_hex(first.first(std::min<std::size_t>(first.size(), 8)));
}

/// Judges a hello as far as it has arrived; nothing = good so far.
[[nodiscard]] inline std::optional<error> check_hello(byte_span so_far, side from) {
    const std::size_t known = std::min(so_far.size(), hello::magic.size());
    if (std::memcmp(so_far.data(), hello::magic.data(), known) != 0) {
        return error(errc::malformed,
                     "the peer does not speak this protocol: " + describe_foreign(so_far))
            .with_hint("another program is at the other end; check address and port");
    }
    if (so_far.size() < hello::bytes) return std::nullopt;
    if (const auto theirs = load_le<std::uint16_t>(so_far.data() + 8); theirs != protocol_version) {
        return error(errc::mismatch, fmt::format("the peer speaks protocol version {}, we speak {}",
                                                 theirs, protocol_version))
            .with_hint("build both sides from the same version of skein");
    }
    if (load_le<std::uint16_t>(so_far.data() + 12) != static_cast<std::uint16_t>(from)) {
        return error(errc::malformed, "the peer claims the same role as we have")
            .with_hint("our own bytes may be coming back (an echo service or a proxy loop)");
    }
    return std::nullopt;
}

inline error token_refused(const token& ours) {
    return error(errc::permission_denied, "the peer has another token")
        .with_hint(fmt::format("give both sides the same token (ours has the fingerprint {})",
                               ours.empty() ? "none" : ours.fingerprint()));
}

inline task<void> read_exactly(stream* from, mut_byte_span into) {
    while (!into.empty()) {
        auto reading = from->read_some(into);
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset, "the peer closed the connection during the handshake")
                .with_hint("its log says why: another token, another build, or it is stopping");
        }
        into = into.subspan(got);
    }
}

inline task<void> write_one(stream* to, byte_span bytes) {
    auto writing = to->write_all(std::span<const byte_span>(&bytes, 1));
    co_await writing;
}

/// One side's half of the secrets of a handshake.
struct handshake_keys {
    sha256_digest connecting_proof, accepting_proof, session;

    handshake_keys(const token& secret, const hello& connecting, const hello& accepting) {
        const auto make = [&](std::string_view label) {
            return hmac_sha256(secret.bytes(), as_bytes(label), connecting.raw, accepting.raw);
        };
        connecting_proof = make("skein/1 connecting side");
        accepting_proof = make("skein/1 accepting side..");
        session = make("skein/1 session key.....");
    }
    [[nodiscard]] sha256_digest mac(side from, byte_span identity_bytes) const {
        const std::byte role{static_cast<unsigned char>(from)};
        return hmac_sha256(session, byte_span(&role, 1), identity_bytes);
    }
};

/// Sends a verdict, and our identity with its MAC if the status is good or build_differs.
inline task<void> send_verdict(stream* to, handshake_status status, sha256_digest proof,
                               byte_buffer identity_bytes, sha256_digest mac) {
    verdict v;
    v.fill(status, proof, identity_bytes.size());
    byte_buffer out = to_buffer(byte_span(v.raw));
    if (status != handshake_status::token_differs) {
        append(out, identity_bytes);
        append(out, mac);
    }
    auto writing = write_one(to, out);
    co_await writing;
}

/// Reads the identity that follows a verdict: its length was checked, its MAC is.
inline task<identity> read_identity(stream* from, std::size_t bytes, std::size_t most, side sender,
                                    const handshake_keys* keys) {
    if (bytes > most) {
        throw error(errc::too_large,
                    fmt::format("identity of {} bytes is above the limit of {}", bytes, most));
    }
    byte_buffer block(bytes);
    auto reading = read_exactly(from, block);
    co_await reading;
    sha256_digest mac{};
    auto reading_mac = read_exactly(from, mac);
    co_await reading_mac;
    if (!equal_constant_time(mac, keys->mac(sender, block))) {
        throw error(errc::permission_denied, "the peer's identity was changed on the way");
    }
    identity peer;
    const auto decoded = wire::decode(block, peer);
    if (!decoded)
        throw error(errc::malformed, "the peer's identity does not decode")
            .with_cause(decoded.error().what());
    co_return peer;
}

inline std::optional<error> check_build(const connection_options& mine, const identity& peer) {
    if (!mine.require_same_build) return std::nullopt;
    const bool same_build = peer.build_id == mine.self.build_id;
    if (same_build && peer.registry_hash == mine.self.registry_hash) return std::nullopt;
    return error(errc::mismatch,
                 fmt::format("'{}' (pid {} at {}) is another build of the program: {} {:016x}, "
                             "ours is {:016x}",
                             peer.name, peer.pid, peer.host, same_build ? "registry" : "build",
                             same_build ? peer.registry_hash : peer.build_id,
                             same_build ? mine.self.registry_hash : mine.self.build_id))
        .with_hint("start the same executable on both sides");
}

} // namespace detail

/// Shakes hands on a fresh stream; both must outlive the task. The caller sets the deadline.
///   result  the peer's identity
///   errors  permission_denied (token), malformed (foreign bytes), mismatch (version, build),
///           too_large, reset
inline task<identity> handshake(stream& with, side mine, const connection_options& options) {
    using detail::handshake_status;
    const bool connecting = mine == side::connecting;
    const side theirs = connecting ? side::accepting : side::connecting;
    detail::hello out, in;
    out.fill(mine, protocol_version, loop::current().random());
    byte_buffer self = wire::encode(options.self);

    if (connecting) {
        auto sending = detail::write_one(&with, out.raw);
        co_await sending;
    }
    for (std::size_t have = 0; have < detail::hello::bytes;) { // judged as it comes
        auto reading = with.read_some(mut_byte_span(in.raw).subspan(have));
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset, "the peer closed the connection during the handshake")
                .with_hint("its log says why; another program may be at the other end");
        }
        have += got;
        auto fault = detail::check_hello(byte_span(in.raw).first(have), theirs);
        if (fault && fault->code() == errc::mismatch && !connecting) {
            auto telling = detail::write_one(&with, out.raw); // so that the peer can say it too
            co_await telling;
        }
        if (fault) throw *fault;
    }
    const detail::handshake_keys keys(options.secret, connecting ? out : in, connecting ? in : out);
    const sha256_digest none{};
    detail::verdict v;

    if (connecting) {
        sha256_digest proof{};
        auto reading_proof = detail::read_exactly(&with, proof);
        co_await reading_proof;
        const bool good = equal_constant_time(proof, keys.accepting_proof);
        if (!good) {
            auto refusing = detail::send_verdict(&with, handshake_status::token_differs, none,
                                                 byte_buffer(), none);
            co_await refusing;
            throw detail::token_refused(options.secret);
        }
        const auto mac = keys.mac(mine, self);
        auto sending = detail::send_verdict(&with, handshake_status::good, keys.connecting_proof,
                                            std::move(self), mac);
        co_await sending;
        auto reading_verdict = detail::read_exactly(&with, v.raw);
        co_await reading_verdict;
        if (v.status() == static_cast<std::uint32_t>(handshake_status::token_differs)) {
            throw detail::token_refused(options.secret);
        }
        auto reading = detail::read_identity(&with, v.identity_bytes(), options.bounds.max_identity,
                                             theirs, &keys);
        identity peer = co_await reading;
        if (auto fault = detail::check_build(options, peer)) throw *fault;
        if (v.status() != static_cast<std::uint32_t>(handshake_status::good)) {
            throw error(errc::mismatch,
                        fmt::format("'{}' (pid {} at {}) refuses another build of the program",
                                    peer.name, peer.pid, peer.host))
                .with_hint("start the same executable on both sides");
        }
        co_return peer;
    }

    byte_buffer answer = to_buffer(byte_span(out.raw));
    append(answer, keys.accepting_proof);
    auto answering = detail::write_one(&with, answer);
    co_await answering;
    auto reading_verdict = detail::read_exactly(&with, v.raw);
    co_await reading_verdict;
    if (v.status() != static_cast<std::uint32_t>(handshake_status::good)) {
        throw detail::token_refused(options.secret);
    }
    if (!equal_constant_time(v.proof(), keys.connecting_proof)) {
        auto refusing =
            detail::send_verdict(&with, handshake_status::token_differs, none, byte_buffer(), none);
        co_await refusing;
        throw detail::token_refused(options.secret);
    }
    auto reading = detail::read_identity(&with, v.identity_bytes(), options.bounds.max_identity,
                                         theirs, &keys);
    identity peer = co_await reading;
    const auto fault = detail::check_build(options, peer);
    const auto mac = keys.mac(mine, self);
    auto telling = detail::send_verdict(
        &with, fault ? handshake_status::build_differs : handshake_status::good, none,
        std::move(self), mac);
    co_await telling;
    if (fault) throw *fault;
    co_return peer;
}

} // namespace skein::net

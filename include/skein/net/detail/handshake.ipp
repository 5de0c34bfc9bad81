// SPDX-License-Identifier: Apache-2.0
#pragma once
// Both sides of the handshake. Before the peer's proof is checked, everything fits into fixed
// buffers.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

/// One side's half of the secrets of a handshake.
struct handshake_keys {
    sha256_digest connecting_proof, accepting_proof, session;
    key_name name; ///< of the key

    handshake_keys(const token& secret, const hello& connecting, const hello& accepting)
        : name(secret.name()) {
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

/// "an HTTP request", "a TLS client", or the first bytes.
SKEIN_INLINE std::string describe_foreign(byte_span first) {
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

/// No method begins with a byte that is within one bit of a hello's first, so a damaged hello is
/// never taken for a request.
SKEIN_INLINE opening opening_of(byte_span so_far) noexcept {
    constexpr std::array<std::string_view, 9> methods = {"GET ", "HEAD", "POST", "PUT ", "DELE",
                                                         "OPTI", "PATC", "CONN", "TRAC"};
    const auto text = as_text(so_far).substr(0, 4);
    if (text.empty()) return opening::unknown;
    for (const auto method : methods)
        if (method.starts_with(text)) return text.size() == 4 ? opening::http : opening::unknown;
    return opening::other;
}

SKEIN_INLINE task<opening> read_opening(stream* from, byte_buffer* into) {
    into->resize(hello_bytes);
    std::size_t have = 0;
    opening found = opening::unknown;
    while (found == opening::unknown) {
        auto reading = from->read_some(mut_byte_span(*into).subspan(have));
        const std::size_t got = co_await reading;
        if (got == 0) break;
        have += got;
        found = opening_of(byte_span(*into).first(have));
    }
    into->resize(have);
    co_return found;
}

SKEIN_INLINE error changed_on_the_way(const char* what) {
    return error(errc::corrupt, fmt::format("the peer's {} was changed on the way", what))
        .with_hint(
            "the network damages what it carries, or another release of skein is at the other end");
}

SKEIN_INLINE void check_sealed(byte_span bytes, const char* what) {
    const std::size_t n = bytes.size() - 4;
    if (load_le<std::uint32_t>(bytes.data() + n) != crc32c(bytes.first(n)))
        throw changed_on_the_way(what);
}

/// In how many bits the first bytes differ from ours.
SKEIN_INLINE int magic_distance(byte_span so_far) {
    int bits = 0;
    for (std::size_t i = 0; i < std::min(so_far.size(), hello::magic.size()); ++i)
        bits += std::popcount(static_cast<unsigned char>(
            static_cast<unsigned char>(so_far[i]) ^ static_cast<unsigned char>(hello::magic[i])));
    return bits;
}

/// One wrong bit among the first is damage, not another protocol: it is judged when all of them are
/// there.
SKEIN_INLINE std::optional<error> check_hello(byte_span so_far, side from) {
    const int wrong = magic_distance(so_far);
    if (wrong == 1 && so_far.size() < hello::bytes) return std::nullopt;
    if (wrong == 1) return changed_on_the_way("hello");
    if (wrong > 1) {
        return error(errc::malformed,
                     "the peer does not speak this protocol: " + describe_foreign(so_far))
            .with_hint("another program is at the other end; check address and port");
    }
    if (so_far.size() < hello::bytes) return std::nullopt;
    const auto theirs = load_le<std::uint16_t>(so_far.data() + 8);
    const bool whole = load_le<std::uint32_t>(so_far.data() + hello::sealed) ==
                       crc32c(so_far.first(hello::sealed));
    if (!whole && theirs != version_without_checksum) return changed_on_the_way("hello");
    if (theirs != protocol_version) {
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

SKEIN_INLINE error token_refused(const token& ours) {
    return error(errc::permission_denied, "the peer has another token")
        .with_hint(fmt::format("give both sides the same token (ours has the fingerprint {})",
                               ours.empty() ? "none" : ours.fingerprint()));
}

SKEIN_INLINE task<void> read_exactly(stream* from, mut_byte_span into) {
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

SKEIN_INLINE task<void> write_one(stream* to, byte_span bytes) {
    auto writing = to->write_all(std::span<const byte_span>(&bytes, 1));
    co_await writing;
}

/// Sends a verdict, and our identity with its MAC if the status is good or build_differs.
SKEIN_INLINE task<void> send_verdict(stream* to, handshake_status status, sha256_digest proof,
                                     byte_buffer identity_bytes, sha256_digest mac) {
    verdict v;
    v.fill(status, proof, identity_bytes.size());
    byte_buffer out = to_buffer(byte_span(v.raw));
    if (status != handshake_status::token_differs) { // else: an identity, or why it is refused
        append(out, identity_bytes);
        append(out, mac);
    }
    auto writing = write_one(to, out);
    co_await writing;
}

/// Reads what follows a verdict, an identity or an error; checks its MAC.
SKEIN_INLINE task<byte_buffer> read_block(stream* from, std::size_t bytes, std::size_t most,
                                          side sender, const handshake_keys* keys) {
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
        throw changed_on_the_way("identity"); // it has proven the token already
    }
    co_return block;
}

/// The identity that follows a verdict, with the key that was proven.
SKEIN_INLINE task<identity> read_identity(stream* from, std::size_t bytes, std::size_t most,
                                          side sender, const handshake_keys* keys) {
    auto reading = read_block(from, bytes, most, sender, keys);
    const auto block = co_await reading;
    identity peer;
    const auto decoded = wire::decode(block, peer);
    if (!decoded)
        throw error(errc::malformed, "the peer's identity does not decode")
            .with_cause(decoded.error().what());
    peer.key = keys->name;
    co_return peer;
}

/// The key with which an accepting side meets a peer whose hello names that one; nothing: with none.
SKEIN_INLINE std::optional<token> key_for(const connection_options& options,
                                          const key_name& asked) {
    const auto& own = options.secret;
    if (asked == own.name()) return own;
    if (own.is_derived() || options.admits == nullptr) return std::nullopt;
    return own.derive(asked);
}

/// One side comes with another key than the other one has or takes.
SKEIN_INLINE error other_key(const key_name& theirs, const key_name& ours, bool connecting) {
    auto text = connecting ? fmt::format("the peer takes {} here, we have {}",
                                         to_string(theirs.kind), to_string(ours.kind))
                           : fmt::format("the peer comes with {}, and only {} is taken here",
                                         to_string(theirs.kind), to_string(ours.kind));
    if (theirs.kind == ours.kind)
        text = fmt::format("the peer has {} of another number", to_string(theirs.kind));
    return error(errc::permission_denied, std::move(text))
        .with_hint("name the key that is meant with --token-file, SKEIN_TOKEN_FILE or SKEIN_TOKEN");
}

/// Why the accepting side refuses a key that was proven.
SKEIN_INLINE task<void> throw_refusal(stream* from, std::size_t bytes, std::size_t most,
                                      const handshake_keys* keys) {
    auto reading = read_block(from, bytes, most, side::accepting, keys);
    const auto block = co_await reading;
    error told(errc::unknown, "");
    if (!wire::decode(block, told))
        throw error(errc::permission_denied, "the peer refuses this key, and its reason does not "
                                             "decode");
    throw error(errc::permission_denied, told.text()).with_hint(told.hint());
}

SKEIN_INLINE std::optional<error> check_peer(const connection_options& mine, const identity& peer) {
    if (peer.purpose != mine.self.purpose) {
        const auto shown = [](const std::string& p) { return p.empty() ? "nothing named" : p; };
        return error(errc::mismatch,
                     fmt::format("{} is there for '{}', we for '{}'", to_string(peer),
                                 shown(peer.purpose), shown(mine.self.purpose)))
            .with_hint(
                "the address belongs to another part of the program; check address and port");
    }
    if (!mine.require_same_build) return std::nullopt;
    const bool same_build = peer.build_id == mine.self.build_id;
    if (same_build && peer.registry_hash == mine.self.registry_hash) return std::nullopt;
    return error(errc::mismatch,
                 fmt::format("{} is another build of the program: {} {:016x}, ours is {:016x}",
                             to_string(peer), same_build ? "registry" : "build",
                             same_build ? peer.registry_hash : peer.build_id,
                             same_build ? mine.self.registry_hash : mine.self.build_id))
        .with_hint("start the same executable on both sides");
}

/// The rest of the connecting side, from the peer's proof on.
SKEIN_INLINE task<identity> finish_connecting(stream* with, const connection_options* options,
                                              const handshake_keys* keys, byte_buffer self) {
    const sha256_digest none{};
    verdict v;
    std::array<std::byte, sealed_proof_bytes> sealed{};
    auto reading_proof = read_exactly(with, sealed);
    co_await reading_proof;
    check_sealed(sealed, "proof");
    const bool good = equal_constant_time(byte_span(sealed).first(32), keys->accepting_proof);
    if (!good) {
        auto refusing =
            send_verdict(with, handshake_status::token_differs, none, byte_buffer(), none);
        co_await refusing;
        throw token_refused(options->secret);
    }
    const auto mac = keys->mac(side::connecting, self);
    auto sending =
        send_verdict(with, handshake_status::good, keys->connecting_proof, std::move(self), mac);
    co_await sending;
    auto reading_verdict = read_exactly(with, v.raw);
    co_await reading_verdict;
    check_sealed(v.raw, "verdict");
    if (v.status() == static_cast<std::uint32_t>(handshake_status::token_differs)) {
        throw token_refused(options->secret);
    }
    if (v.status() == static_cast<std::uint32_t>(handshake_status::key_refused)) {
        auto refused = throw_refusal(with, v.identity_bytes(), options->bounds.max_identity, keys);
        co_await refused;
    }
    auto reading = read_identity(with, v.identity_bytes(), options->bounds.max_identity,
                                 side::accepting, keys);
    identity peer = co_await reading;
    if (auto fault = check_peer(*options, peer)) throw *fault;
    if (v.status() != static_cast<std::uint32_t>(handshake_status::good)) {
        throw error(errc::mismatch, to_string(peer) + " refuses another build of the program")
            .with_hint("start the same executable on both sides");
    }
    co_return peer;
}

/// The rest of the accepting side, from its answer to the hello on.
SKEIN_INLINE task<identity> finish_accepting(stream* with, const connection_options* options,
                                             const handshake_keys* keys, byte_buffer self,
                                             byte_span out) {
    const sha256_digest none{};
    verdict v;
    byte_buffer answer = to_buffer(byte_span(out));
    append(answer, keys->accepting_proof);
    std::array<std::byte, 4> crc{};
    store_le(crc.data(), crc32c(keys->accepting_proof));
    append(answer, crc);
    auto answering = write_one(with, answer);
    co_await answering;
    auto reading_verdict = read_exactly(with, v.raw);
    co_await reading_verdict;
    check_sealed(v.raw, "verdict");
    if (v.status() != static_cast<std::uint32_t>(handshake_status::good)) {
        throw token_refused(options->secret);
    }
    if (!equal_constant_time(v.proof(), keys->connecting_proof)) {
        auto refusing =
            send_verdict(with, handshake_status::token_differs, none, byte_buffer(), none);
        co_await refusing;
        throw token_refused(options->secret);
    }
    auto reading = read_identity(with, v.identity_bytes(), options->bounds.max_identity,
                                 side::connecting, keys);
    identity peer = co_await reading;
    if (options->admits) {
        if (const auto refused = options->admits(peer.key)) {
            auto why = wire::encode(*refused);
            const auto mac = keys->mac(side::accepting, why);
            auto telling =
                send_verdict(with, handshake_status::key_refused, none, std::move(why), mac);
            co_await telling;
            throw *refused;
        }
    }
    const auto fault = check_peer(*options, peer);
    const auto mac = keys->mac(side::accepting, self);
    auto telling =
        send_verdict(with, fault ? handshake_status::build_differs : handshake_status::good, none,
                     std::move(self), mac);
    co_await telling;
    if (fault) throw *fault;
    co_return peer;
}

} // namespace detail

SKEIN_INLINE task<identity> handshake(stream& with, side mine, const connection_options& options,
                                      byte_span first, admission* place) {
    SKEIN_CHECK(first.size() <= hello_bytes, "more of the stream was read than the first message");
    const bool connecting = mine == side::connecting;
    const side theirs = connecting ? side::accepting : side::connecting;
    detail::hello out, in;
    out.fill(mine, protocol_version, loop::current().random(), options.secret.name());
    byte_buffer self = wire::encode(options.self);

    if (connecting) {
        auto sending = detail::write_one(&with, out.raw);
        co_await sending;
    }
    std::copy(first.begin(), first.end(), in.raw.begin());
    for (std::size_t have = first.size();;) { // judged as it comes
        auto fault = detail::check_hello(byte_span(in.raw).first(have), theirs);
        if (fault && fault->code() == errc::mismatch && !connecting) {
            auto telling = detail::write_one(&with, out.raw); // so that the peer can say it too
            co_await telling;
        }
        if (fault) throw *fault;
        if (have == hello_bytes) break;
        auto reading = with.read_some(mut_byte_span(in.raw).subspan(have));
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset, "the peer closed the connection during the handshake")
                .with_hint("its log says why; another program may be at the other end");
        }
        have += got;
    }
    if (place != nullptr) place->greeted();
    const auto shared =
        connecting ? std::optional<token>(options.secret) : detail::key_for(options, in.key());
    if (shared && !connecting) out.name(in.key());
    if (!shared || in.key() != out.key()) {
        if (!connecting) { // so that the peer can say it too
            auto telling = detail::write_one(&with, out.raw);
            co_await telling;
        }
        throw detail::other_key(in.key(), options.secret.name(), connecting);
    }
    const detail::handshake_keys keys(*shared, connecting ? out : in, connecting ? in : out);
    auto rest = connecting
                    ? detail::finish_connecting(&with, &options, &keys, std::move(self))
                    : detail::finish_accepting(&with, &options, &keys, std::move(self), out.raw);
    auto peer = co_await rest;
    co_return peer;
}

SKEIN_INLINE task<identity> authenticate(stream& with, side mine, connection_options options,
                                         byte_buffer first, admission* place) {
    std::optional<error> failure;
    try {
        auto shaking = with_timeout(handshake(with, mine, options, first, place),
                                    options.bounds.handshake_deadline);
        auto peer = co_await shaking;
        co_return peer;
    } catch (const error& e) {
        failure = e;
    }
    with.close(); // bytes already sent (a verdict) arrive
    error e(failure->code(), "handshake with " + with.peer_name() + " failed: " + failure->text());
    if (!failure->cause().empty()) e.with_cause(failure->cause());
    if (!failure->hint().empty()) e.with_hint(failure->hint());
    throw e;
}

SKEIN_INLINE task<authenticated_stream> dial(network& via, address to, connection_options options) {
    authenticated_stream made;
    auto connecting = via.connect(std::move(to));
    made.stream = co_await connecting;
    auto greeting = authenticate(*made.stream, side::connecting, std::move(options));
    made.peer = co_await greeting;
    co_return made;
}

} // namespace skein::net

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first bytes on a stream between two ranks: who calls, for which channel, and the proof that both
// know the token. After it the stream belongs to the collectives.
//
//     caller -> acceptor   hello { magic, version, rank, channel, nonce }
//     acceptor -> caller   answer { nonce, HMAC(token, "accept", hello, nonce) }
//     caller -> acceptor   HMAC(token, "call", hello, nonce)
//     acceptor -> caller   one byte: welcome
//
// Nothing is allocated for a peer before it has proven the token.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sha256.hpp>
#include <skein/dist/detail/stream_io.hpp>
#include <skein/net/stream.hpp>
#include <skein/net/token.hpp>

#include <array>
#include <cstdint>
#include <utility>

namespace skein::dist::detail {

struct link_hello {
    static constexpr std::uint32_t magic = 0x6b6c7364, version = 1; // "dslk"
    static constexpr std::size_t bytes = 48;
    std::uint32_t rank = 0, channel = 0;
    std::array<std::byte, 32> nonce{};

    void encode(std::byte* to) const noexcept {
        store_le(to, magic);
        store_le(to + 4, version);
        store_le(to + 8, rank);
        store_le(to + 12, channel);
        std::copy(nonce.begin(), nonce.end(), to + 16);
    }
    static link_hello decode(const std::byte* from) {
        if (load_le<std::uint32_t>(from) != magic) {
            throw error(errc::malformed, "the peer does not speak the protocol of collectives");
        }
        if (load_le<std::uint32_t>(from + 4) != version) {
            throw error(errc::mismatch,
                        fmt::format("the peer speaks version {} of collectives, this is {}",
                                    load_le<std::uint32_t>(from + 4), version))
                .with_hint("run the same build on every rank");
        }
        link_hello h;
        h.rank = load_le<std::uint32_t>(from + 8);
        h.channel = load_le<std::uint32_t>(from + 12);
        std::copy_n(from + 16, h.nonce.size(), h.nonce.begin());
        return h;
    }
};

[[nodiscard]] SKEIN_INLINE sha256_digest link_proof(const net::token& secret, std::string_view side,
                                                    byte_span hello, byte_span nonce) {
    return hmac_sha256(secret.bytes(), as_bytes(side), hello, nonce);
}

SKEIN_INLINE error wrong_token() {
    return error(errc::permission_denied, "the peer does not know the token of this world")
        .with_hint("ranks of two jobs must not use the same address");
}

/// The caller's side. nonce: fresh random bytes.
SKEIN_INLINE task<void> call_hello(net::stream& s, net::token secret, link_hello hello) {
    std::array<std::byte, link_hello::bytes> first{};
    hello.encode(first.data());
    auto sent = write_exact(s, first);
    co_await std::move(sent);
    std::array<std::byte, 64> answer{};
    auto got = read_exact(s, answer);
    co_await std::move(got);
    const auto nonce = byte_span(answer).first(32);
    if (!equal_constant_time(byte_span(answer).subspan(32),
                             link_proof(secret, "accept", first, nonce))) {
        throw wrong_token();
    }
    const auto proof = link_proof(secret, "call", first, nonce);
    auto proven = write_exact(s, proof);
    co_await std::move(proven);
    std::array<std::byte, 1> welcome{};
    auto last = read_exact(s, welcome);
    co_await std::move(last);
}

/// The acceptor's side: who it is.
SKEIN_INLINE task<link_hello> accept_hello(net::stream& s, net::token secret,
                                           std::array<std::byte, 32> nonce) {
    std::array<std::byte, link_hello::bytes> first{};
    auto got = read_exact(s, first);
    co_await std::move(got);
    const link_hello hello = link_hello::decode(first.data());
    std::array<std::byte, 64> answer{};
    std::copy(nonce.begin(), nonce.end(), answer.begin());
    const auto mine = link_proof(secret, "accept", first, nonce);
    std::copy(mine.begin(), mine.end(), answer.begin() + 32);
    auto sent = write_exact(s, answer);
    co_await std::move(sent);
    std::array<std::byte, 32> theirs{};
    auto proof = read_exact(s, theirs);
    co_await std::move(proof);
    if (!equal_constant_time(theirs, link_proof(secret, "call", first, nonce))) throw wrong_token();
    const std::array<std::byte, 1> welcome{std::byte{1}};
    auto last = write_exact(s, welcome);
    co_await std::move(last);
    co_return hello;
}

} // namespace skein::dist::detail

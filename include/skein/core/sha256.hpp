// SPDX-License-Identifier: Apache-2.0
#pragma once
// SHA-256 and HMAC-SHA-256, for the token handshake and for build and registry fingerprints.
//
// Small messages only: no attempt at speed beyond plain C++. Source: FIPS 180-4, RFC 2104.
//
//     digest proof = hmac_sha256(secret, challenge, name);
//     if (!equal_constant_time(proof, theirs)) refuse();

#include <skein/core/bytes.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>

namespace skein {

/// The 32 bytes of a SHA-256.
using sha256_digest = std::array<std::byte, 32>;

/// An incremental SHA-256. finish() may be called once.
class sha256 {
public:
    using digest = sha256_digest;
    static constexpr std::size_t block_bytes = 64;

    void update(byte_span bytes) noexcept {
        total_ += bytes.size();
        if (used_ > 0) {
            const std::size_t n = std::min(block_bytes - used_, bytes.size());
            std::copy_n(bytes.begin(), n, block_.begin() + static_cast<std::ptrdiff_t>(used_));
            used_ += n;
            bytes = bytes.subspan(n);
            if (used_ < block_bytes) return;
            compress(block_.data());
            used_ = 0;
        }
        for (; bytes.size() >= block_bytes; bytes = bytes.subspan(block_bytes))
            compress(bytes.data());
        std::copy(bytes.begin(), bytes.end(), block_.begin());
        used_ = bytes.size();
    }
    void update(std::string_view text) noexcept { update(as_bytes(text)); }

    [[nodiscard]] digest finish() noexcept {
        const std::uint64_t bits = total_ * 8;
        std::array<std::byte, block_bytes + 8> tail{};
        tail[0] = std::byte{0x80};
        const std::size_t zeros = (used_ < 56 ? 56 : 120) - used_;
        for (std::size_t i = 0; i < 8; ++i)
            tail[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i) & 255);
        update(byte_span(tail).first(zeros + 8));
        digest out{};
        for (std::size_t i = 0; i < 8; ++i)
            for (std::size_t k = 0; k < 4; ++k)
                out[4 * i + k] = static_cast<std::byte>(state_[i] >> (24 - 8 * k) & 255);
        return out;
    }

private:
    static constexpr std::array<std::uint32_t, 64> round_ = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};

    void compress(const std::byte* block) noexcept {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i)
            for (std::size_t k = 0; k < 4; ++k)
                w[i] = w[i] << 8 | std::to_integer<std::uint32_t>(block[4 * i + k]);
        for (std::size_t i = 16; i < 64; ++i) {
            const auto s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const auto s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + round_[i] + w[i];
            const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        const std::array<std::uint32_t, 8> add = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i) state_[i] += add[i];
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, block_bytes> block_{};
    std::size_t used_ = 0;
    std::uint64_t total_ = 0;
};

/// The SHA-256 of one piece of bytes.
[[nodiscard]] inline sha256_digest sha256_of(byte_span bytes) noexcept {
    sha256 hash;
    hash.update(bytes);
    return hash.finish();
}

/// HMAC-SHA-256 of the concatenation of all parts. The parts are not separated from each other:
/// the caller gives parts of fixed length, or writes lengths in between.
template <class... Parts>
    requires(std::convertible_to<const Parts&, byte_span> && ...)
[[nodiscard]] sha256_digest hmac_sha256(byte_span key, const Parts&... parts) noexcept {
    std::array<std::byte, sha256::block_bytes> pad{};
    if (key.size() > pad.size()) {
        const auto short_key = sha256_of(key);
        std::copy(short_key.begin(), short_key.end(), pad.begin());
    } else {
        std::copy(key.begin(), key.end(), pad.begin());
    }
    for (auto& b : pad) b ^= std::byte{0x36};
    sha256 inner;
    inner.update(byte_span(pad));
    (inner.update(byte_span(parts)), ...);
    const auto inside = inner.finish();
    for (auto& b : pad) b ^= std::byte{0x36 ^ 0x5c};
    sha256 outer;
    outer.update(byte_span(pad));
    outer.update(byte_span(inside));
    return outer.finish();
}

/// Compares secrets; the time depends on the length only, not on the place of a difference.
[[nodiscard]] inline bool equal_constant_time(byte_span a, byte_span b) noexcept {
    if (a.size() != b.size()) return false;
    unsigned char difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference =
            static_cast<unsigned char>(difference | std::to_integer<unsigned char>(a[i] ^ b[i]));
        asm volatile("" : "+r"(difference)); // keeps the compiler from leaving the loop early
    }
    return difference == 0;
}

} // namespace skein

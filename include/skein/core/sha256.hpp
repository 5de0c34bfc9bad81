// SPDX-License-Identifier: Apache-2.0
#pragma once
// SHA-256 and HMAC-SHA-256: for the token handshake, for build and registry fingerprints, and for
// the files of jobs.
//
// Uses the SHA instructions of x86 when the CPU has them (asked once, at run time), else plain C++,
// which is some seven times slower. Both give the same. Source: FIPS 180-4, RFC 2104.
//
//     digest proof = hmac_sha256(secret, challenge, name);
//     if (!equal_constant_time(proof, theirs)) refuse();

#include <skein/core/bytes.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace skein {

/// The 32 bytes of a SHA-256.
using sha256_digest = std::array<std::byte, 32>;

namespace detail {
using sha256_state = std::array<std::uint32_t, 8>;
/// The state after so many whole blocks of 64 bytes.
void sha256_blocks(sha256_state& state, const std::byte* from, std::size_t blocks) noexcept;
/// The portable form of it.
void sha256_plain(sha256_state& state, const std::byte* from, std::size_t blocks) noexcept;
} // namespace detail

/// True when SHA-256 uses the CPU's instructions.
[[nodiscard]] bool sha256_is_hardware() noexcept;

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
            detail::sha256_blocks(state_, block_.data(), 1);
            used_ = 0;
        }
        const std::size_t whole = bytes.size() / block_bytes;
        if (whole > 0) detail::sha256_blocks(state_, bytes.data(), whole);
        bytes = bytes.subspan(whole * block_bytes);
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
    detail::sha256_state state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
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

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/sha256.ipp>
#endif

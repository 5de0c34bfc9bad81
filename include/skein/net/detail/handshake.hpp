// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the two sides of a handshake send each other.

#include <skein/core/bytes.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/core/random.hpp>
#include <skein/core/task.hpp>
#include <skein/net/key_name.hpp>
#include <skein/net/stream.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

namespace skein::net {
enum class side : std::uint16_t; // of handshake.hpp
} // namespace skein::net

namespace skein::net::detail {

enum class handshake_status : std::uint32_t {
    good = 0,
    token_differs = 1,
    build_differs = 2,
    key_refused = 3, ///< the key is a good one and opens nothing here; the text says why
};

/// magic(8) version(2) kind of the key(2) role(2) zero(2) its number(8) nonce(20) crc of all
/// before(4)
struct hello {
    static constexpr std::size_t bytes = 48; // hello_bytes
    static constexpr std::array<char, 8> magic = {'s', 'k', 'e', 'i', 'n', '\r', '\n', '\0'};
    static constexpr std::size_t sealed = bytes - 4; ///< the CRC covers so many
    std::array<std::byte, bytes> raw{};

    void fill(side mine, std::uint16_t version, random_source& random, const key_name& key = {}) {
        std::memcpy(raw.data(), magic.data(), magic.size());
        store_le(raw.data() + 8, version);
        store_le(raw.data() + 12, static_cast<std::uint16_t>(mine));
        random.fill(mut_byte_span(raw).subspan(16, sealed - 16)); // the number takes 8 of these
        name(key);
    }
    /// Names another key; all else stays.
    void name(const key_name& key) {
        store_le(raw.data() + 10, static_cast<std::uint16_t>(key.kind));
        store_le(raw.data() + 16, key.number);
        store_le(raw.data() + sealed, crc32c(byte_span(raw).first(sealed)));
    }
    [[nodiscard]] std::uint16_t version() const noexcept {
        return load_le<std::uint16_t>(raw.data() + 8);
    }
    [[nodiscard]] key_name key() const noexcept {
        return {static_cast<key_kind>(load_le<std::uint16_t>(raw.data() + 10)),
                load_le<std::uint64_t>(raw.data() + 16)};
    }
    [[nodiscard]] std::uint16_t role() const noexcept {
        return load_le<std::uint16_t>(raw.data() + 12);
    }
};

/// The accepting side's proof, behind its hello: proof(32) crc(4).
inline constexpr std::size_t sealed_proof_bytes = 36;

/// What comes with each side's verdict: status(4) proof(32) identity length(4) crc of all
/// before(4).
struct verdict {
    static constexpr std::size_t bytes = 44;
    static constexpr std::size_t sealed = bytes - 4; ///< the CRC covers so many
    std::array<std::byte, bytes> raw{};

    void fill(handshake_status status, byte_span proof, std::size_t identity_bytes) {
        store_le(raw.data(), static_cast<std::uint32_t>(status));
        std::copy(proof.begin(), proof.end(), raw.begin() + 4);
        store_le(raw.data() + 36, static_cast<std::uint32_t>(identity_bytes));
        store_le(raw.data() + sealed, crc32c(byte_span(raw).first(sealed)));
    }
    [[nodiscard]] std::uint32_t status() const noexcept {
        return load_le<std::uint32_t>(raw.data());
    }
    [[nodiscard]] byte_span proof() const noexcept { return byte_span(raw).subspan(4, 32); }
    [[nodiscard]] std::size_t identity_bytes() const noexcept {
        return load_le<std::uint32_t>(raw.data() + 36);
    }
};

/// What the first bytes of a stream are of.
enum class opening : std::uint8_t {
    unknown, ///< too few to tell
    http,    ///< a request of HTTP
    other    ///< a hello of ours, or what its check refuses
};
[[nodiscard]] opening opening_of(byte_span so_far) noexcept;
/// Reads until that is known, at most a hello; what it has read stays in `into`.
task<opening> read_opening(stream* from, byte_buffer* into);

/// Judges a hello as far as it has arrived; nothing = good so far.
[[nodiscard]] std::optional<error> check_hello(byte_span so_far, side from);
/// Something of a handshake does not fit its checksum: another try may go well.
[[nodiscard]] error changed_on_the_way(const char* what);
/// Throws it unless the last four bytes are the CRC of those before.
void check_sealed(byte_span bytes, const char* what);
task<void> read_exactly(stream* from, mut_byte_span into);
task<void> write_one(stream* to, byte_span bytes);

} // namespace skein::net::detail

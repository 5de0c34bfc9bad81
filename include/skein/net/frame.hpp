// SPDX-License-Identifier: Apache-2.0
#pragma once
// Frames: what a connection carries. A header of 24 bytes, then the body.
//
//     u32 length   u16 kind   u16 flags   u64 id   u32 crc of body   u32 crc of the 20 bytes before
//
// The length is checked against its limit, and the header against its CRC, before one byte is
// allocated. All numbers are little-endian.

#include <skein/core/bytes.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace skein::net {

/// A frame with its own body. Kinds from first_reserved_kind on belong to the connection itself.
struct frame {
    std::uint16_t kind = 0;
    std::uint16_t flags = 0; ///< the high bit belongs to the connection, 15 are the user's
    std::uint64_t id = 0;
    byte_buffer body{};
};

/// Kinds from here on belong to the connection itself.
inline constexpr std::uint16_t first_reserved_kind = 0xff00;
inline constexpr std::uint16_t body_crc_flag = 0x8000; ///< the body's CRC is in the header

/// A received frame as a view: valid only during the call that hands it out.
struct frame_view {
    std::uint16_t kind = 0;
    std::uint16_t flags = 0;
    std::uint64_t id = 0;
    byte_span body;
    byte_buffer* owned = nullptr; ///< set when the body has a buffer of its own (large frames)

    /// The body as an owned buffer: moved when it has its own buffer, else copied. Call once.
    [[nodiscard]] byte_buffer take_body() const {
        return owned != nullptr ? std::move(*owned) : to_buffer(body);
    }
};

/// The fixed part in front of each body.
struct frame_header {
    static constexpr std::size_t bytes = 24;

    std::uint32_t length = 0;
    std::uint16_t kind = 0;
    std::uint16_t flags = 0;
    std::uint64_t id = 0;
    std::uint32_t body_crc = 0;

    void encode(std::byte* to) const noexcept {
        // In the units in which the checksum reads it: it would wait for several stores that make
        // up one of them.
        store_le(to,
                 std::uint64_t{length} | std::uint64_t{kind} << 32 | std::uint64_t{flags} << 48);
        store_le(to + 8, id);
        store_le(to + 16, body_crc);
        store_le(to + 20, crc32c(byte_span(to, 20)));
    }

    /// Reads a header from `bytes` bytes.
    ///   errors  corrupt (CRC), too_large (body above max_body): nothing was allocated
    [[nodiscard]] static result<frame_header> decode(const std::byte* from, std::size_t max_body);

    /// The same without a result object, for the hot path: nothing = good.
    [[nodiscard]] std::optional<error> read(const std::byte* from, std::size_t max_body);

    /// True unless the header carries a CRC that does not fit the body.
    [[nodiscard]] bool accepts(byte_span body) const noexcept {
        return (flags & body_crc_flag) == 0 || crc32c(body) == body_crc;
    }
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/frame.ipp>
#endif

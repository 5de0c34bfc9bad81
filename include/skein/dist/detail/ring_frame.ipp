// SPDX-License-Identifier: Apache-2.0
#pragma once
// What travels on the links of a ring: a header of 64 bytes, then data or an error.

#include <skein/core/bytes.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/dist/detail/abort_body.ipp>
#include <skein/dist/detail/collective_signature.hpp>

#include <cstdint>
#include <string>

#include <fmt/core.h>

namespace skein::dist::detail {

enum class ring_kind : std::uint32_t { data = 1, abort = 2, bye = 3 };

/// step counts the frames of one collective on one link.
struct ring_header {
    static constexpr std::size_t size = 64;
    static constexpr std::uint32_t magic = 0x6b6e7264; // "drnk"
    static constexpr std::uint32_t max_notice = most_abort_bytes;
    ring_kind kind = ring_kind::data;
    signature what;
    std::uint32_t step = 0;
    std::uint32_t bytes = 0;

    void encode(std::byte* to) const noexcept {
        store_le(to, magic);
        store_le(to + 4, static_cast<std::uint32_t>(kind));
        store_le(to + 8, what.sequence);
        store_le(to + 16, what.count);
        store_le(to + 24, what.detail);
        store_le(to + 32, what.tag);
        to[40] = static_cast<std::byte>(what.kind);
        to[41] = static_cast<std::byte>(what.type);
        to[42] = static_cast<std::byte>(what.op);
        to[43] = static_cast<std::byte>(what.outer);
        store_le(to + 44, static_cast<std::uint32_t>(what.into));
        store_le(to + 48, step);
        store_le(to + 52, bytes);
        store_le(to + 56, std::uint32_t{0});
        store_le(to + 60, crc32c(byte_span(to, 60)));
    }
    [[nodiscard]] static result<ring_header> decode(const std::byte* from) {
        if (load_le<std::uint32_t>(from) != magic ||
            load_le<std::uint32_t>(from + 60) != crc32c(byte_span(from, 60))) {
            return error(errc::corrupt, "the stream between two ranks is damaged, or out of step");
        }
        ring_header h;
        h.kind = static_cast<ring_kind>(load_le<std::uint32_t>(from + 4));
        h.what.sequence = load_le<std::uint64_t>(from + 8);
        h.what.count = load_le<std::uint64_t>(from + 16);
        h.what.detail = load_le<std::uint64_t>(from + 24);
        h.what.tag = load_le<std::uint64_t>(from + 32);
        h.what.kind = static_cast<op_kind>(from[40]);
        h.what.type = static_cast<dtype>(from[41]);
        h.what.op = static_cast<reduce_op>(from[42]);
        h.what.outer = static_cast<op_kind>(from[43]);
        h.what.into = static_cast<dtype>(from[44]);
        h.step = load_le<std::uint32_t>(from + 48);
        h.bytes = load_le<std::uint32_t>(from + 52);
        return h;
    }
};

/// An abort notice as bytes: header, then the error.
[[nodiscard]] SKEIN_INLINE byte_buffer abort_notice(const error& why) {
    const byte_buffer body = abort_body(why);
    ring_header h;
    h.kind = ring_kind::abort;
    h.bytes = static_cast<std::uint32_t>(body.size());
    byte_buffer out(ring_header::size);
    h.encode(out.data());
    append(out, body);
    return out;
}

[[nodiscard]] SKEIN_INLINE byte_buffer bye_notice() {
    ring_header h;
    h.kind = ring_kind::bye;
    byte_buffer out(ring_header::size);
    h.encode(out.data());
    return out;
}

} // namespace skein::dist::detail

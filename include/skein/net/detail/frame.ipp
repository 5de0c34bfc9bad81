// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a frame header must be to be believed.

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE std::optional<error> frame_header::read(const std::byte* from, std::size_t max_body) {
    length = load_le<std::uint32_t>(from);
    kind = load_le<std::uint16_t>(from + 4);
    flags = load_le<std::uint16_t>(from + 6);
    id = load_le<std::uint64_t>(from + 8);
    body_crc = load_le<std::uint32_t>(from + 16);
    if (load_le<std::uint32_t>(from + 20) != crc32c(byte_span(from, 20))) [[unlikely]] {
        return error(errc::corrupt, "frame header with a wrong checksum")
            .with_hint("the network has damaged it, or the stream is out of step");
    }
    if (length > max_body) [[unlikely]] {
        return error(errc::too_large,
                     fmt::format("frame of {} bytes is above the limit of {}", length, max_body))
            .with_hint("send it in pieces or raise limits::max_frame on both sides");
    }
    return std::nullopt;
}

SKEIN_INLINE result<frame_header> frame_header::decode(const std::byte* from,
                                                       std::size_t max_body) {
    frame_header h;
    if (const auto fault = h.read(from, max_body)) return *fault;
    return h;
}

} // namespace skein::net

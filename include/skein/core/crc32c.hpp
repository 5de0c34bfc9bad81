// SPDX-License-Identifier: Apache-2.0
#pragma once
// CRC-32C (Castagnoli), the checksum of frames and of stored chunks.
//
// Uses the SSE4.2 instruction when the CPU has it (asked once, at run time), else eight tables.
// Both give the same value; crc32c("123456789") is 0xE3069283. Source: RFC 3720 appendix B.4.
//
//     std::uint32_t sum = crc32c(head);
//     sum = crc32c(body, sum);            // the sum of head followed by body

#include <skein/core/bytes.hpp>

#include <cstddef>
#include <cstdint>

namespace skein {

namespace detail {
/// The portable form; the state is not inverted here.
std::uint32_t crc32c_table(std::uint32_t crc, const std::byte* p, std::size_t n) noexcept;
} // namespace detail

/// True when crc32c() uses the CPU's instruction.
[[nodiscard]] bool crc32c_is_hardware() noexcept;

/// The CRC-32C of `bytes` continued from `seed`, the sum of what came before (0 at the start).
[[nodiscard]] std::uint32_t crc32c(byte_span bytes, std::uint32_t seed = 0) noexcept;

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/crc32c.ipp>
#endif

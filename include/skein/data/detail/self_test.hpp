// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether the kernels give the bits that they give elsewhere: -ffast-math changes them.

#include <skein/core/config.hpp>

#include <cstdint>

namespace skein::data::detail {

/// A hash over what the kernels make of a known block.
[[nodiscard]] std::uint64_t hash_of_kernels();
/// What hash_of_kernels() is on every machine and compiler.
inline constexpr std::uint64_t expected_hash = 0xa59f2317e591b66eULL;

/// Looks once per program.
///   errors  mismatch: the hash is another
void require_exact_kernels();

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/self_test.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which build of the program this is: equal for two processes of one executable, different as soon
// as one byte of code or constants differs. Compared before anything is decoded from a worker.
//
// The linker's GNU build-id note if there is one; else a hash over the read-only segments in
// memory.

#include <skein/core/bytes.hpp>

#include <cstdint>

namespace skein::proc {

namespace detail {

/// The build-id note inside a note segment; empty if there is none.
[[nodiscard]] byte_span find_build_id(byte_span notes) noexcept;

} // namespace detail

/// The id of the running program; computed once.
[[nodiscard]] std::uint64_t build_id();

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/build_id.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole reads and writes on a stream.

#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>

namespace skein::net {
class stream;
}

namespace skein::dist::detail {

/// Reads exactly all of `into`.
///   errors  closed when the peer ended its side before the first byte, reset in the middle
task<void> read_exact(net::stream& from, mut_byte_span into);
task<void> write_exact(net::stream& to, byte_span bytes);

} // namespace skein::dist::detail

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/stream_io.ipp>
#endif

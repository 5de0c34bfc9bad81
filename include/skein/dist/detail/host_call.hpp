// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call of a collective as its signature, for models that work in the host's memory. Checked:
// sizes that do not fit are a bug of the caller; memory that is not the host's is
// errc::not_supported.

#include <skein/dist/buffer.hpp>
#include <skein/dist/detail/collective_signature.hpp>
#include <skein/dist/group_memory.hpp>

#include <cstddef>
#include <span>

namespace skein::dist::detail {

[[nodiscard]] signature all_reduce_call(buffer_view io, reduce_op op);
[[nodiscard]] signature reduce_scatter_call(buffer_view in, buffer_view out, reduce_op op,
                                            int ranks);
[[nodiscard]] signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                              reduce_op op, int ranks);
/// With the result in `out` of `rank`.
[[nodiscard]] signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                              buffer_view out, reduce_op op, int rank, int ranks);
[[nodiscard]] signature all_gather_call(buffer_view in, buffer_view out, int ranks);
[[nodiscard]] signature all_gather_v_call(buffer_view in, buffer_view out,
                                          std::span<const std::size_t> counts, int rank, int ranks);
[[nodiscard]] signature broadcast_call(buffer_view io, int root, int ranks);
[[nodiscard]] signature barrier_call();
[[nodiscard]] signature allocate_call(std::size_t bytes, memory_kind kind);
/// The send or recv of `rank` with `peer`.
[[nodiscard]] signature message_call(buffer_view io, int peer, int rank, int ranks);

} // namespace skein::dist::detail

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/host_call.ipp>
#endif

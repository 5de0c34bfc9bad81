// SPDX-License-Identifier: Apache-2.0
#pragma once
// The collectives of one rank.

#include <skein/core/check.hpp>
#include <skein/dist/detail/host_call.hpp>
#include <skein/dist/half.hpp>

#include <cstring>
#include <utility>

namespace skein::dist {

SKEIN_INLINE task<void> stub_communicator::all_reduce(buffer_view io, reduce_op op) {
    (void)detail::all_reduce_call(io, op);
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op op) {
    (void)detail::reduce_scatter_call(in, out, op, 1);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            reduce_op op) {
    (void)detail::reduce_scatter_v_call(io, counts, op, 1);
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            buffer_view out, reduce_op op) {
    (void)detail::reduce_scatter_v_call(io, counts, out, op, 0, 1);
    check();
    if (io.data != out.data) widen(static_cast<float*>(out.data), io.data, io.type, io.count);
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::all_gather(buffer_view in, buffer_view out) {
    (void)detail::all_gather_call(in, out, 1);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    (void)detail::all_gather_v_call(in, out, counts, 0, 1);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::broadcast(buffer_view io, int root) {
    (void)detail::broadcast_call(io, root, 1);
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::barrier() {
    check();
    co_return;
}
SKEIN_INLINE task<std::shared_ptr<group_memory>> stub_communicator::allocate(std::size_t bytes,
                                                                             memory_kind kind) {
    (void)detail::allocate_call(bytes, kind);
    check();
    co_return group_memory::alone(bytes, kind, true);
}
SKEIN_INLINE task<void> stub_communicator::send(buffer_view io, int to) {
    (void)detail::message_call(io, to, 0, 1); // nobody to talk to: a bug of the caller
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::recv(buffer_view io, int from) {
    (void)detail::message_call(io, from, 0, 1);
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::close() { co_return; }

SKEIN_INLINE void stub_communicator::abort(error why) noexcept {
    const std::lock_guard lock(guard_);
    if (!aborted_) aborted_ = std::move(why);
}

SKEIN_INLINE task<void> stub_communicator::copy(buffer_view in, buffer_view out) {
    check();
    if (in.data != out.data && in.count > 0) std::memmove(out.data, in.data, in.bytes());
    co_return;
}
SKEIN_INLINE void stub_communicator::check() {
    const std::lock_guard lock(guard_);
    if (aborted_) throw *aborted_;
}

} // namespace skein::dist

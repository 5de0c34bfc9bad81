// SPDX-License-Identifier: Apache-2.0
#pragma once
// The collectives of one rank.

#include <skein/core/check.hpp>

#include <cstring>
#include <utility>

namespace skein::dist {

SKEIN_INLINE task<void> stub_communicator::all_reduce(buffer_view io, reduce_op) {
    check();
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op) {
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::all_gather(buffer_view in, buffer_view out) {
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    SKEIN_CHECK(counts.size() == 1 && counts[0] == in.count,
                "all_gather_v: one count of {} expected", in.count);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::broadcast(buffer_view, int root) {
    check();
    SKEIN_CHECK(root == 0, "broadcast from rank {} of 1", root);
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::barrier() {
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::send(buffer_view, int to) { return nobody(to); }
SKEIN_INLINE task<void> stub_communicator::recv(buffer_view, int from) { return nobody(from); }
SKEIN_INLINE task<void> stub_communicator::close() { co_return; }

SKEIN_INLINE void stub_communicator::abort(error why) noexcept {
    const std::lock_guard lock(guard_);
    if (!aborted_) aborted_ = std::move(why);
}

SKEIN_INLINE task<void> stub_communicator::copy(buffer_view in, buffer_view out) {
    check();
    SKEIN_CHECK(in.count == out.count && in.type == out.type, "{} elements into {}", in.count,
                out.count);
    if (in.data != out.data && in.count > 0) std::memmove(out.data, in.data, in.bytes());
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::nobody(int peer) {
    SKEIN_CHECK(false, "send or recv with rank {} in a world of 1", peer);
    co_return;
}
SKEIN_INLINE void stub_communicator::check() {
    const std::lock_guard lock(guard_);
    if (aborted_) throw *aborted_;
}

} // namespace skein::dist

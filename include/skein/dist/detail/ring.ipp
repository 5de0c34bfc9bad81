// SPDX-License-Identifier: Apache-2.0
#pragma once
// The members of ring_communicator: each hands on to the core, which lives as long as its work.

#include <skein/core/awaitable.hpp>
#include <skein/dist/detail/ring_core.ipp>
#include <skein/dist/detail/ring_failure.ipp>
#include <skein/dist/detail/ring_steps.ipp>

#include <memory>
#include <utility>

namespace skein::dist {

SKEIN_INLINE ring_communicator::ring_communicator(std::shared_ptr<core> made) noexcept
    : core_(std::move(made)) {}
SKEIN_INLINE ring_communicator::~ring_communicator() = default;

SKEIN_INLINE task<std::unique_ptr<ring_communicator>> ring_communicator::connect(
    std::shared_ptr<links> net, std::vector<int> group, int position, ring_options pieces,
    collective_options limits, int divisor) {
    auto ring = std::unique_ptr<ring_communicator>(new ring_communicator(std::make_shared<core>(
        std::move(net), std::move(group), position, pieces, limits, divisor)));
    auto connecting = as_result(ring->core_->connect_neighbours());
    auto connected = co_await std::move(connecting);
    if (!connected) {
        auto closing = ring->close();
        co_await std::move(closing);
        throw connected.error();
    }
    co_return std::move(ring);
}

SKEIN_INLINE int ring_communicator::rank() const noexcept { return core_->position(); }
SKEIN_INLINE int ring_communicator::world_size() const noexcept { return core_->size(); }
SKEIN_INLINE std::string ring_communicator::name() const {
    return fmt::format("ring x{}", core_->size());
}
SKEIN_INLINE void ring_communicator::set_deadline(time_span limit) noexcept {
    core_->set_deadline(limit);
}
SKEIN_INLINE void ring_communicator::set_tag(collective_tag tag) { core_->set_tag(tag); }

SKEIN_INLINE task<void> ring_communicator::all_reduce(buffer_view io, reduce_op op) {
    return core_->all_reduce(io, io, op);
}
SKEIN_INLINE task<void> ring_communicator::all_reduce_into(buffer_view in, buffer_view out,
                                                           reduce_op op) {
    return core_->all_reduce(in, out, op);
}
SKEIN_INLINE task<void> ring_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op op) {
    return core_->reduce_scatter(in, out, op);
}
SKEIN_INLINE task<void> ring_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            reduce_op op) {
    return core_->reduce_scatter_v(io, counts, op);
}
SKEIN_INLINE task<void> ring_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            buffer_view out, reduce_op op) {
    return core_->reduce_scatter_v(io, counts, out, op);
}
SKEIN_INLINE task<void> ring_communicator::all_gather(buffer_view in, buffer_view out) {
    return core_->all_gather(in, out);
}
SKEIN_INLINE task<void> ring_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    return core_->all_gather_v(in, out, counts);
}
SKEIN_INLINE task<void> ring_communicator::broadcast(buffer_view io, int root) {
    return core_->broadcast(io, root);
}
SKEIN_INLINE task<void> ring_communicator::barrier() { return core_->barrier(); }
SKEIN_INLINE task<std::shared_ptr<group_memory>> ring_communicator::allocate(std::size_t bytes,
                                                                             memory_kind kind) {
    return core_->allocate(bytes, kind);
}
SKEIN_INLINE task<void> ring_communicator::send(buffer_view io, int to) {
    return core_->send(io, to);
}
SKEIN_INLINE task<void> ring_communicator::recv(buffer_view io, int from) {
    return core_->recv(io, from);
}
SKEIN_INLINE task<void> ring_communicator::close() { return core_->close(); }

SKEIN_INLINE void ring_communicator::set_outer(detail::op_kind kind) noexcept {
    core_->set_outer(kind);
}
SKEIN_INLINE task<void> ring_communicator::agree(detail::signature what) {
    return core_->agree(what);
}
SKEIN_INLINE void ring_communicator::on_failure(unique_function<void(const error&)> listener) {
    core_->on_failure(std::move(listener));
}

SKEIN_INLINE void ring_communicator::abort(error why) noexcept {
    try {
        core_->on().post_from_any_thread([weak = std::weak_ptr<core>(core_), why = std::move(why)] {
            if (const auto c = weak.lock()) c->fail(why);
        });
    } catch (...) { // out of memory: the deadline will end it
    }
}

} // namespace skein::dist

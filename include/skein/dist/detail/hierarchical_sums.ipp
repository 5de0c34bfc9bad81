// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reductions in two levels: inside the hosts, then between them.

#include <skein/dist/half.hpp>
#include <skein/dist/ring.hpp>
#include <skein/dist/shm.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace skein::dist {

namespace detail {

/// Elements to another place, or the same one.
SKEIN_INLINE void put_elements(buffer_view from, buffer_view to) {
    if (from.count > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes());
}

} // namespace detail

/// Whether a host has several ranks, so that sums travel between hosts, and not elements.
SKEIN_INLINE bool hierarchical_communicator::sums_travel() const noexcept {
    return where_.hosts.size() < static_cast<std::size_t>(size_);
}

/// Where sums of `io` are when they leave a host: in io itself, or in float32 for bf16 and f16. The
/// maximum of two halves is a half and needs no more memory. Only the leader has the place.
SKEIN_INLINE buffer_view hierarchical_communicator::place_of_sums(buffer_view io, dtype into,
                                                                  reduce_op op) {
    const bool adds = op == reduce_op::sum || op == reduce_op::mean;
    const bool wide = is_half(io.type) && (into != io.type || (adds && sums_travel()));
    if (!wide) return io;
    return where_.my_place == 0 ? floats(io.count) : buffer_view{nullptr, io.count, dtype::f32};
}

SKEIN_INLINE buffer_view hierarchical_communicator::floats(std::size_t count) {
    wide_.resize(std::max(wide_.size(), count));
    return buffer_view{wide_.data(), count, dtype::f32};
}

/// The sum of this host's ranks, to `to` of the leader.
SKEIN_INLINE task<void> hierarchical_communicator::sum_inside(buffer_view io, buffer_view to,
                                                              reduce_op op) {
    if (inside_) {
        auto local = inside_->reduce_to(io, to, op == reduce_op::mean ? reduce_op::sum : op, 0);
        co_await std::move(local);
    } else if (to.type != io.type) {
        widen(static_cast<float*>(to.data), io.data, io.type, io.count);
    }
}

/// The whole reduction to every rank's `out`, which may be io, or f32.
SKEIN_INLINE task<void> hierarchical_communicator::reduce_everywhere(buffer_view io,
                                                                     buffer_view out,
                                                                     reduce_op op) {
    if (where_.hosts.size() == 1) { // inside_ knows the divisor of mean; out is io
        auto all = inside_->all_reduce(io, op);
        co_await std::move(all);
        co_return;
    }
    const buffer_view sums = place_of_sums(io, out.type, op);
    auto local = sum_inside(io, sums, op);
    co_await std::move(local);
    if (between_) {
        auto global = between_->all_reduce_into(sums, out, op);
        co_await std::move(global);
    }
    if (inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(out, 0);
        co_await std::move(back);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_then_cut(buffer_view in, buffer_view out,
                                                                   reduce_op op) {
    work_.resize(std::max(work_.size(), in.bytes()));
    const buffer_view whole{work_.data(), in.count, in.type};
    detail::put_elements(in, whole);
    std::vector<std::size_t> equal(static_cast<std::size_t>(size_), out.count);
    auto reducing = reduce_parts(whole, std::move(equal), out, op);
    co_await std::move(reducing);
}

/// Each rank's part of the sum to its `out`, which may be that part of io, or f32.
SKEIN_INLINE task<void> hierarchical_communicator::reduce_parts(buffer_view io,
                                                                std::vector<std::size_t> counts,
                                                                buffer_view out, reduce_op op) {
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t before = detail::starts_of(counts)[mine];
    const bool same_type = io.type == out.type;
    const bool one_host = where_.hosts.size() == 1;
    if (one_host || (!sums_travel() && hosts_are_neighbours())) { // one level does it all
        communicator* const level = one_host ? static_cast<communicator*>(inside_.get())
                                             : static_cast<communicator*>(between_.get());
        auto all = same_type ? level->reduce_scatter_v(io, counts, op)
                             : level->reduce_scatter_v(io, counts, out, op);
        co_await std::move(all);
        if (same_type) detail::put_elements(io.slice(before, out.count), out);
    } else if (!hosts_are_neighbours()) {
        const buffer_view whole = same_type ? io : floats(io.count);
        auto all = reduce_everywhere(io, whole, op);
        co_await std::move(all);
        detail::put_elements(whole.slice(before, out.count), out);
    } else {
        auto parts = reduce_host_parts(io, std::move(counts), out, op);
        co_await std::move(parts);
    }
}

/// Every host's part of the sum goes to its leader, and from there to its ranks.
SKEIN_INLINE task<void> hierarchical_communicator::reduce_host_parts(
    buffer_view io, std::vector<std::size_t> counts, buffer_view out, reduce_op op) {
    const bool leads = where_.my_place == 0;
    const std::vector<std::size_t> per_host = sums_per_host(counts);
    const auto here = static_cast<std::size_t>(where_.my_host);
    const std::size_t first = detail::starts_of(per_host)[here];
    const buffer_view sums = place_of_sums(io, out.type, op);
    auto local = sum_inside(io, sums, op);
    co_await std::move(local);
    if (between_) {
        auto global = between_->reduce_scatter_v(sums, per_host, op);
        co_await std::move(global);
    }
    buffer_view ours = io.slice(first, per_host[here]);
    if (io.type != out.type)
        ours = leads ? sums.slice(first, per_host[here]) : floats(per_host[here]);
    else if (sums.type != io.type && leads) // rounded before it is handed out
        narrow(ours.data, ours.type, static_cast<const float*>(sums.data) + first, ours.count);
    if (inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(ours, 0);
        co_await std::move(back);
    }
    const auto before = detail::starts_of(counts)[static_cast<std::size_t>(rank_)];
    detail::put_elements(ours.slice(before - first, out.count), out);
}

} // namespace skein::dist

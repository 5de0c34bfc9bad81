// SPDX-License-Identifier: Apache-2.0
#pragma once
// The collectives of shm_communicator, and its beginning and end.

#include <skein/core/check.hpp>
#include <skein/dist/detail/host_call.hpp>
#include <skein/dist/detail/shm_memory.ipp>
#include <skein/dist/detail/shm_steps.ipp>
#include <skein/dist/detail/shm_waiting.ipp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::dist {

SKEIN_INLINE std::size_t detail::shm_layout::small_for(int ranks, std::size_t of_two) noexcept {
    const std::size_t least = std::min(of_two, std::size_t{8} << 10);
    return std::max(least, of_two * 2 / std::max<std::size_t>(2, static_cast<std::size_t>(ranks)));
}

SKEIN_INLINE detail::shm_layout::shm_layout(int ranks, shm_options o)
    : ranks_(static_cast<std::size_t>(ranks)), chunk_(round_up(o.chunk_bytes, 4096)),
      small_(round_up(small_for(ranks, o.small_bytes), 4096)),
      message_(round_up(o.message_bytes, 4096)) {
    SKEIN_CHECK(ranks >= 1, "shared memory for {} ranks", ranks);
    const std::size_t least = round_up(ranks_ * 1024, 4096);
    if (chunk_ < least) chunk_ = least;
    slots_at_ = round_up(sizeof(shm_head) + ranks_ * sizeof(shm_rank), 4096);
    per_rank_ = 2 * small_ + 4 * chunk_;
    pairs_at_ = slots_at_ + ranks_ * per_rank_;
    messages_at_ = round_up(pairs_at_ + ranks_ * ranks_ * sizeof(shm_pair), 4096);
    bytes_ = messages_at_ + ranks_ * ranks_ * 2 * message_;
}

SKEIN_INLINE shm_communicator::shm_communicator(shared_memory segment, int rank, int size,
                                                std::vector<int> labels, shm_options pieces,
                                                collective_options limits)
    : segment_(std::move(segment)), layout_(size, pieces), rank_(rank), size_(size),
      labels_(std::move(labels)), deadline_(limits.deadline), steps_(pieces.first_step) {
    SKEIN_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
    SKEIN_CHECK(segment_.bytes() == layout_.bytes(), "segment of {} bytes, {} expected",
                segment_.bytes(), layout_.bytes());
    for (int r = static_cast<int>(labels_.size()); r < size; ++r) labels_.push_back(r);
    for (const counter c :
         {&detail::shm_rank::published, &detail::shm_rank::reduced, &detail::shm_rank::fetched}) {
        (me().*c).store(steps_, std::memory_order_relaxed); // before pid, which says it is there
    }
    me().pid.store(::getpid(), std::memory_order_seq_cst);
}
SKEIN_INLINE shm_communicator::~shm_communicator() = default;

SKEIN_INLINE std::size_t shm_communicator::segment_bytes(int size, shm_options pieces) {
    return detail::shm_layout(size, pieces).bytes();
}

SKEIN_INLINE void shm_communicator::join() {
    segment_.hide();
    for (int r = 0; r < size_; ++r) {
        const int pid = at(r).pid.load(std::memory_order_seq_cst);
        SKEIN_CHECK(pid != 0, "rank {} has not attached yet", label(r));
        // Without pidfd_open (before Linux 5.3) the pid is asked instead.
        watched_.emplace_back(
            pid == ::getpid() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
}

SKEIN_INLINE std::string shm_communicator::name() const { return fmt::format("shm x{}", size_); }

SKEIN_INLINE task<void> shm_communicator::all_reduce(buffer_view io, reduce_op op) {
    return reduce_all(detail::all_reduce_call(io, op), io, io, op, size_, -1);
}

SKEIN_INLINE task<void> shm_communicator::reduce_to(buffer_view io, buffer_view out, reduce_op op,
                                                    int root) {
    auto what = detail::all_reduce_call(io, op);
    what.kind = detail::op_kind::reduce;
    what.detail = static_cast<std::uint64_t>(label(root));
    what.into = out.type;
    return reduce_all(what, io, out, op, 1, root);
}

/// To `root`'s out, or everybody's when it is negative.
SKEIN_INLINE task<void> shm_communicator::reduce_all(detail::signature what, buffer_view in,
                                                     buffer_view out, reduce_op op, int divisor,
                                                     int root) {
    // Results go straight into the ranks' memory where they have the type of what lies there.
    const auto place = in.type == out.type ? place_to_reduce(in) : detail::memory_place{};
    what.memory = place.word();
    begin(what);
    if (in.bytes() <= layout_.small_bytes()) {
        bring_small(in.begin(), in.bytes());
        meeting all_are_here{*this};
        co_await all_are_here;
        std::byte* const result = root < 0 || root == rank_ ? out.begin() : nullptr;
        reduce_small(in, result, out.type, 0, in.count, op, divisor);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory != nullptr) {
        reduce_slices(place, in, op, divisor, root);
    } else {
        reduce_steps(reduction{.comm = *this,
                               .in = in.begin(),
                               .out = out.begin(),
                               .count = in.count,
                               .type = in.type,
                               .into = out.type,
                               .op = op,
                               .divisor = divisor,
                               .parts = {},
                               .only_root = root});
    }
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                         reduce_op op) {
    const auto what = detail::reduce_scatter_call(in, out, op, size_);
    const std::vector<std::size_t> equal(static_cast<std::size_t>(size_), out.count);
    auto work = reduce_parts(what, in, out, equal, op);
    co_await std::move(work);
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter_v(buffer_view io,
                                                           std::span<const std::size_t> counts,
                                                           reduce_op op) {
    const auto what = detail::reduce_scatter_v_call(io, counts, op, size_);
    const auto mine = static_cast<std::size_t>(rank_);
    const auto out = io.slice(detail::starts_of(counts)[mine], counts[mine]);
    return reduce_parts(what, io, out, counts, op);
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter_v(buffer_view io,
                                                           std::span<const std::size_t> counts,
                                                           buffer_view out, reduce_op op) {
    const auto what = detail::reduce_scatter_v_call(io, counts, out, op, rank_, size_);
    return reduce_parts(what, io, out, counts, op);
}

SKEIN_INLINE task<void> shm_communicator::all_gather(buffer_view in, buffer_view out) {
    const auto what = detail::all_gather_call(in, out, size_);
    const std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), in.bytes());
    auto work = gather_anywhere(what, in, out, bytes);
    co_await std::move(work);
}

SKEIN_INLINE task<void> shm_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                       std::span<const std::size_t> counts) {
    const auto what = detail::all_gather_v_call(in, out, counts, rank_, size_);
    std::vector<std::size_t> bytes;
    for (const std::size_t c : counts) bytes.push_back(c * size_of(in.type));
    auto work = gather_anywhere(what, in, out, bytes);
    co_await std::move(work);
}

SKEIN_INLINE task<void> shm_communicator::broadcast(buffer_view io, int root) {
    auto what = detail::broadcast_call(io, root, size_);
    what.detail = static_cast<std::uint64_t>(label(root));
    const auto place = memory_->find(io);
    what.memory = place.word();
    begin(what);
    const bool common = place.memory != nullptr && place.memory->kind() == memory_kind::common;
    const bool small = io.bytes() <= layout_.small_bytes();
    std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), 0);
    bytes[static_cast<std::size_t>(root)] = io.bytes();
    if (small && !common) {
        bring_small(io.begin(), bytes[static_cast<std::size_t>(rank_)]);
        meeting all_are_here{*this};
        co_await all_are_here;
        take_small(io.begin(), io.begin(), bytes);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory != nullptr)
        broadcast_in_place(place, io, root);
    else
        gather(io.begin(), io.begin(), bytes);
}

SKEIN_INLINE task<void> shm_communicator::barrier() {
    begin(detail::barrier_call());
    announce();
    meeting all_are_here{*this};
    co_await all_are_here;
}

/// Messages have their own counters; they do not count as collectives.
SKEIN_INLINE void shm_communicator::begin_message(buffer_view io, int peer) {
    until_ = deadline_after(steady_now(), deadline_);
    auto what = detail::message_call(io, peer, rank_, size_);
    what.detail = static_cast<std::uint64_t>(label(peer));
    what.sequence = doing_.sequence;
    doing_ = what;
    short_ = false;
    throw_if_aborted();
}

SKEIN_INLINE task<void> shm_communicator::send(buffer_view io, int to) {
    begin_message(io, to);
    auto& pair = layout_.pair(segment_.data(), rank_, to);
    const std::size_t chunk = layout_.message_bytes();
    std::size_t done = 0;
    do {
        const std::uint32_t k = pair.sent.load(std::memory_order_relaxed);
        wait_until([&](int r) {
            return r != to ||
                   detail::at_least(pair.received.load(std::memory_order_acquire), k - 1);
        });
        const std::size_t n = std::min(chunk, io.bytes() - done);
        pair.count[k & 1] = io.count;
        pair.type[k & 1] = io.type;
        if (n > 0)
            std::memcpy(layout_.message(segment_.data(), rank_, to, k), io.begin() + done, n);
        pair.sent.store(k + 1, std::memory_order_seq_cst);
        at(to).bell.ring();
        done += n;
    } while (done < io.bytes());
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::recv(buffer_view io, int from) {
    begin_message(io, from);
    auto& pair = layout_.pair(segment_.data(), from, rank_);
    const std::size_t chunk = layout_.message_bytes();
    std::size_t done = 0;
    do {
        const std::uint32_t k = pair.received.load(std::memory_order_relaxed);
        wait_until([&](int r) {
            return r != from || detail::at_least(pair.sent.load(std::memory_order_acquire), k + 1);
        });
        if (pair.count[k & 1] != io.count || pair.type[k & 1] != io.type) {
            error why(errc::mismatch,
                      fmt::format("rank {} sent {} x {}, rank {} expects {} x {}", label(from),
                                  to_string(pair.type[k & 1]), pair.count[k & 1], label(rank_),
                                  to_string(io.type), io.count));
            abort(why);
            throw why;
        }
        const std::size_t n = std::min(chunk, io.bytes() - done);
        if (n > 0)
            std::memcpy(io.begin() + done, layout_.message(segment_.data(), from, rank_, k), n);
        pair.received.store(k + 1, std::memory_order_seq_cst);
        at(from).bell.ring();
        done += n;
    } while (done < io.bytes());
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::close() {
    me().left.store(1, std::memory_order_seq_cst);
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) at(r).bell.ring();
    }
    co_return;
}

} // namespace skein::dist

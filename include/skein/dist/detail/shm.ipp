// SPDX-License-Identifier: Apache-2.0
#pragma once
// The collectives of shm_communicator, and its beginning and end.

#include <skein/core/check.hpp>
#include <skein/dist/detail/shm_steps.ipp>
#include <skein/dist/detail/shm_waiting.ipp>

#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::dist {

SKEIN_INLINE detail::shm_layout::shm_layout(int ranks, shm_options o)
    : ranks_(static_cast<std::size_t>(ranks)), chunk_(round_up(o.chunk_bytes, 4096)),
      small_(round_up(o.small_bytes, 4096)), message_(round_up(o.message_bytes, 4096)) {
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
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    begin(detail::op_kind::all_reduce, io.count, io.type, op, 0);
    if (io.bytes() <= layout_.small_bytes()) {
        reduce_small(io, io.begin(), 0, io.count, op, size_);
    } else {
        reduce_steps(io.begin(), io.begin(), io.count, io.type, op, size_, false, -1);
    }
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::reduce_to(buffer_view io, reduce_op op, int root) {
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    begin(detail::op_kind::reduce, io.count, io.type, op, static_cast<std::uint64_t>(label(root)));
    if (io.bytes() <= layout_.small_bytes()) {
        reduce_small(io, root == rank_ ? io.begin() : nullptr, 0, io.count, op, 1);
    } else {
        reduce_steps(io.begin(), io.begin(), io.count, io.type, op, 1, false, root);
    }
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                         reduce_op op) {
    SKEIN_CHECK(in.type == out.type && in.type != dtype::u8 &&
                    in.count == out.count * static_cast<std::size_t>(size_),
                "reduce_scatter of {} elements into {} on {} ranks", in.count, out.count, size_);
    begin(detail::op_kind::reduce_scatter, in.count, in.type, op, 0);
    if (in.bytes() <= layout_.small_bytes()) {
        reduce_small(in, out.begin(), out.count * static_cast<std::size_t>(rank_), out.count, op,
                     size_);
    } else {
        reduce_steps(in.begin(), out.begin(), out.count, in.type, op, size_, true, -1);
    }
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::all_gather(buffer_view in, buffer_view out) {
    SKEIN_CHECK(in.type == out.type && out.count == in.count * static_cast<std::size_t>(size_),
                "all_gather of {} elements into {} on {} ranks", in.count, out.count, size_);
    begin(detail::op_kind::all_gather, out.count, in.type, reduce_op::sum, 0);
    const std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), in.bytes());
    gather(in.begin(), out.begin(), bytes);
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                       std::span<const std::size_t> counts) {
    SKEIN_CHECK(counts.size() == static_cast<std::size_t>(size_) && in.type == out.type &&
                    in.count == counts[static_cast<std::size_t>(rank_)],
                "all_gather_v: {} counts for {} ranks, own part {}", counts.size(), size_,
                in.count);
    std::vector<std::size_t> bytes;
    std::size_t total = 0;
    for (const std::size_t c : counts) {
        bytes.push_back(c * size_of(in.type));
        total += c;
    }
    SKEIN_CHECK(out.count == total, "all_gather_v: counts add up to {}, out has {}", total,
                out.count);
    begin(detail::op_kind::all_gather_v, total, in.type, reduce_op::sum,
          detail::hash_counts(counts));
    gather(in.begin(), out.begin(), bytes);
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::broadcast(buffer_view io, int root) {
    SKEIN_CHECK(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
    begin(detail::op_kind::broadcast, io.count, io.type, reduce_op::sum,
          static_cast<std::uint64_t>(label(root)));
    std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), 0);
    bytes[static_cast<std::size_t>(root)] = io.bytes();
    gather(io.begin(), io.begin(), bytes);
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::barrier() {
    begin(detail::op_kind::barrier, 0, dtype::u8, reduce_op::sum, 0);
    arrive();
    meet();
    co_return;
}

// Messages have their own counters; they do not count as collectives.

SKEIN_INLINE void shm_communicator::begin_message(buffer_view io) {
    until_ = deadline_after(steady_now(), deadline_);
    doing_.kind = detail::op_kind::message;
    doing_.outer = detail::op_kind::none;
    doing_.count = io.count;
    doing_.type = io.type;
    throw_if_aborted();
}

SKEIN_INLINE task<void> shm_communicator::send(buffer_view io, int to) {
    SKEIN_CHECK(to >= 0 && to < size_ && to != rank_, "send from rank {} to {} of {}", rank_, to,
                size_);
    begin_message(io);
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
    SKEIN_CHECK(from >= 0 && from < size_ && from != rank_, "recv on rank {} from {} of {}", rank_,
                from, size_);
    begin_message(io);
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

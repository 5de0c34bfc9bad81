// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machinery of shm_communicator; included at the end of shm.hpp.
//
// A step k of a reduction passes one chunk: publish(k) fills the own `in` slot, reduce(k) combines one
// slice and fills the own `out` slot, fetch(k) copies the other slices. Slots are used by parity of k:
//   publish(k) needs reduced >= k-1 of all (step k-2 has been read)
//   reduce(k)  needs published >= k+1 of all, and fetched >= k-1 of all (out of step k-2 has been read)
//   fetch(k)   needs reduced >= k+1 of all
// They run as publish(k+1), reduce(k), fetch(k-1), so nobody waits for a peer that keeps pace.

#include <skein/dist/shm.hpp>

namespace skein::dist {

inline void shm_communicator::begin(detail::op_kind kind, std::uint64_t count, dtype type,
                                    reduce_op op, std::uint64_t more) {
    until_ = deadline_after(steady_now(), deadline_);
    doing_.sequence += 1;
    doing_.kind = kind;
    doing_.count = count;
    doing_.type = type;
    doing_.op = op;
    doing_.outer = outer_;
    doing_.detail = more;
    throw_if_aborted();
}

/// Says what this rank is doing. Small slots of this parity are free since all arrived at the last.
inline void shm_communicator::arrive() {
    me().doing[doing_.sequence & 1] = doing_;
    publish(&detail::shm_rank::arrived, static_cast<std::uint32_t>(doing_.sequence));
}

/// Waits until all have arrived, and compares. A peer may be one collective ahead, not two: hence
/// two signatures.
inline void shm_communicator::meet() {
    wait_all(&detail::shm_rank::arrived, static_cast<std::uint32_t>(doing_.sequence));
    for (int r = 0; r < size_; ++r) {
        const detail::signature theirs = at(r).doing[doing_.sequence & 1];
        if (theirs == doing_) continue;
        const bool first = r < rank_;
        auto why = detail::mismatch_error(label(first ? r : rank_), first ? theirs : doing_,
                                          label(first ? rank_ : r), first ? doing_ : theirs);
        abort(why);
        throw why;
    }
}

inline void shm_communicator::publish(counter which, std::uint32_t value) noexcept {
    (me().*which).store(value, std::memory_order_seq_cst);
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) at(r).bell.ring();
    }
}

/// One exchange: every rank sees everything and reduces elements [first, first + n) in rank order.
inline void shm_communicator::reduce_small(buffer_view in, std::byte* result, std::size_t first,
                                           std::size_t n, reduce_op op, int divisor) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    if (in.count > 0)
        std::memcpy(layout_.small(segment_.data(), rank_, parity), in.data, in.bytes());
    arrive();
    meet();
    if (n == 0 || result == nullptr) return;
    std::array<const void*, 64> few;
    std::vector<const void*> many(size_ > 64 ? static_cast<std::size_t>(size_) : 0);
    const void** sources = size_ > 64 ? many.data() : few.data();
    for (int r = 0; r < size_; ++r) {
        sources[r] = layout_.small(segment_.data(), r, parity) + first * size_of(in.type);
    }
    reduce(result, std::span<const void* const>(sources, static_cast<std::size_t>(size_)), n,
           in.type, op, divisor);
}

inline void shm_communicator::reduce_steps(const std::byte* in, std::byte* out, std::size_t count,
                                           dtype type, reduce_op op, int divisor, bool scattered,
                                           int only_root) {
    using r = detail::shm_rank;
    const std::size_t width = size_of(type), ranks = static_cast<std::size_t>(size_);
    const std::size_t line = 64 / width; // slices start on cache lines
    const std::size_t slice = layout_.chunk_bytes() / width / ranks / line * line;
    // scattered: count is one rank's part, and a step takes a slice of every part
    const std::size_t per_step = scattered ? slice : slice * ranks;
    const auto steps = static_cast<std::uint32_t>((count + per_step - 1) / per_step);
    const std::uint32_t base = steps_;
    std::byte* const m = segment_.data();
    const auto mine = static_cast<std::size_t>(rank_);

    struct piece {
        std::size_t at, n, slot; // element in the user's buffer, elements, element in the slot
    };
    const auto cut = [&](std::uint32_t k, std::size_t p) {
        const std::size_t first = k * per_step, here = std::min(per_step, count - first);
        if (scattered) return piece{p * count + first, here, p * slice};
        const std::size_t share = ((here + ranks - 1) / ranks + line - 1) / line * line;
        const std::size_t from = std::min(p * share, here), to = std::min(from + share, here);
        return piece{first + from, to - from, p * slice};
    };
    const auto publish_step = [&](std::uint32_t k) {
        wait_all(&r::reduced, base + k - 1);
        for (std::size_t p = 0; p < ranks; ++p) {
            const piece c = cut(k, p);
            if (p == mine || c.n == 0) continue;
            std::memcpy(layout_.in(m, rank_, base + k) + c.slot * width, in + c.at * width,
                        c.n * width);
        }
        publish(&r::published, base + k + 1);
    };
    const auto reduce_step = [&](std::uint32_t k) {
        wait_all(&r::published, base + k + 1);
        wait_all(&r::fetched, base + k - 1);
        const piece c = cut(k, mine);
        std::vector<const void*>& sources = sources_;
        sources.resize(ranks);
        constexpr std::size_t hot = std::size_t{16}
                                    << 10; // reduced and copied while in the first cache
        const std::size_t some = hot / width;
        for (std::size_t i = 0; i < c.n; i += some) {
            const std::size_t n = std::min(some, c.n - i);
            for (std::size_t p = 0; p < ranks; ++p) {
                sources[p] =
                    p == mine ? in + (c.at + i) * width
                              : layout_.in(m, static_cast<int>(p), base + k) + (c.slot + i) * width;
            }
            std::byte* const result = out + (scattered ? k * per_step + i : c.at + i) * width;
            reduce(result, sources, n, type, op, divisor);
            if (!scattered) {
                std::memcpy(layout_.out(m, rank_, base + k) + (c.slot + i) * width, result,
                            n * width);
            }
        }
        publish(&r::reduced, base + k + 1);
    };
    const auto fetch_step = [&](std::uint32_t k) {
        if (!scattered && (only_root < 0 || only_root == rank_)) {
            wait_all(&r::reduced, base + k + 1);
            for (std::size_t p = 0; p < ranks; ++p) {
                const piece c = cut(k, p);
                if (p == mine || c.n == 0) continue;
                std::memcpy(out + c.at * width,
                            layout_.out(m, static_cast<int>(p), base + k) + c.slot * width,
                            c.n * width);
            }
        }
        publish(&r::fetched, base + k + 1);
    };

    publish_step(0);
    arrive();
    meet();
    for (std::uint32_t k = 0; k < steps; ++k) {
        if (k + 1 < steps) publish_step(k + 1);
        reduce_step(k);
        if (k > 0) fetch_step(k - 1);
    }
    fetch_step(steps - 1);
    steps_ = base + steps;
}

/// Every rank r gives bytes[r] and gets all of them, one after the other. `in` is the own part.
inline void shm_communicator::gather(const std::byte* in, std::byte* out,
                                     std::span<const std::size_t> bytes) {
    using r = detail::shm_rank;
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t longest = *std::max_element(bytes.begin(), bytes.end());
    std::byte* const m = segment_.data();
    std::vector<std::size_t> starts(bytes.size());
    for (std::size_t p = 1; p < bytes.size(); ++p) starts[p] = starts[p - 1] + bytes[p - 1];

    if (longest <= layout_.small_bytes()) {
        const auto parity = static_cast<std::uint32_t>(doing_.sequence);
        if (bytes[mine] > 0) std::memcpy(layout_.small(m, rank_, parity), in, bytes[mine]);
        arrive();
        meet();
        for (std::size_t p = 0; p < bytes.size(); ++p) {
            if (bytes[p] == 0 || (p == mine && in == out + starts[p])) continue;
            std::memcpy(out + starts[p], layout_.small(m, static_cast<int>(p), parity), bytes[p]);
        }
        return;
    }

    const std::size_t chunk = layout_.chunk_bytes();
    const auto steps = static_cast<std::uint32_t>((longest + chunk - 1) / chunk);
    const std::uint32_t base = steps_;
    const auto length = [&](std::size_t p, std::uint32_t k) {
        return bytes[p] > k * chunk ? std::min(chunk, bytes[p] - k * chunk) : std::size_t{0};
    };
    const auto publish_step = [&](std::uint32_t k) {
        wait_all(&r::reduced, base + k - 1);
        const std::size_t n = length(mine, k);
        if (n > 0) std::memcpy(layout_.in(m, rank_, base + k), in + k * chunk, n);
        publish(&r::published, base + k + 1);
    };
    publish_step(0);
    arrive();
    meet();
    for (std::uint32_t k = 0; k < steps; ++k) {
        if (k + 1 < steps) publish_step(k + 1);
        wait_all(&r::published, base + k + 1);
        for (std::size_t p = 0; p < bytes.size(); ++p) {
            const std::size_t n = length(p, k);
            std::byte* const to = out + starts[p] + k * chunk;
            if (n == 0) continue;
            if (p != mine)
                std::memcpy(to, layout_.in(m, static_cast<int>(p), base + k), n);
            else if (in + k * chunk != to)
                std::memcpy(to, in + k * chunk, n);
        }
        me().fetched.store(base + k + 1, std::memory_order_seq_cst);
        publish(&r::reduced, base + k + 1);
    }
    steps_ = base + steps;
}

inline task<void> shm_communicator::all_reduce(buffer_view io, reduce_op op) {
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    begin(detail::op_kind::all_reduce, io.count, io.type, op, 0);
    if (io.bytes() <= layout_.small_bytes()) {
        reduce_small(io, io.begin(), 0, io.count, op, size_);
    } else {
        reduce_steps(io.begin(), io.begin(), io.count, io.type, op, size_, false, -1);
    }
    co_return;
}

inline task<void> shm_communicator::reduce_to(buffer_view io, reduce_op op, int root) {
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    begin(detail::op_kind::reduce, io.count, io.type, op, static_cast<std::uint64_t>(label(root)));
    if (io.bytes() <= layout_.small_bytes()) {
        reduce_small(io, root == rank_ ? io.begin() : nullptr, 0, io.count, op, 1);
    } else {
        reduce_steps(io.begin(), io.begin(), io.count, io.type, op, 1, false, root);
    }
    co_return;
}

inline task<void> shm_communicator::reduce_scatter(buffer_view in, buffer_view out, reduce_op op) {
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

inline task<void> shm_communicator::all_gather(buffer_view in, buffer_view out) {
    SKEIN_CHECK(in.type == out.type && out.count == in.count * static_cast<std::size_t>(size_),
                "all_gather of {} elements into {} on {} ranks", in.count, out.count, size_);
    begin(detail::op_kind::all_gather, out.count, in.type, reduce_op::sum, 0);
    const std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), in.bytes());
    gather(in.begin(), out.begin(), bytes);
    co_return;
}

inline task<void> shm_communicator::all_gather_v(buffer_view in, buffer_view out,
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

inline task<void> shm_communicator::broadcast(buffer_view io, int root) {
    SKEIN_CHECK(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
    begin(detail::op_kind::broadcast, io.count, io.type, reduce_op::sum,
          static_cast<std::uint64_t>(label(root)));
    std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), 0);
    bytes[static_cast<std::size_t>(root)] = io.bytes();
    gather(io.begin(), io.begin(), bytes);
    co_return;
}

inline task<void> shm_communicator::barrier() {
    begin(detail::op_kind::barrier, 0, dtype::u8, reduce_op::sum, 0);
    arrive();
    meet();
    co_return;
}

// Messages have their own counters; they do not count as collectives.

inline void shm_communicator::begin_message(buffer_view io) {
    until_ = deadline_after(steady_now(), deadline_);
    doing_.kind = detail::op_kind::message;
    doing_.outer = detail::op_kind::none;
    doing_.count = io.count;
    doing_.type = io.type;
    throw_if_aborted();
}

inline task<void> shm_communicator::send(buffer_view io, int to) {
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

inline task<void> shm_communicator::recv(buffer_view io, int from) {
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

inline task<void> shm_communicator::close() {
    me().left.store(1, std::memory_order_seq_cst);
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) at(r).bell.ring();
    }
    co_return;
}

// Waiting and failing.

template <class Reached>
void shm_communicator::wait_until(Reached reached) {
    int behind = rank_;
    const auto all_reached = [&] {
        for (int r = 0; r < size_; ++r) {
            if (r != rank_ && !reached(r)) {
                behind = r;
                return false;
            }
        }
        return true;
    };
    // Whoever aborts has stored its counters before: what it has done its part of ends well here too.
    const auto ready = [&] {
        const bool aborted = head().aborted.load(std::memory_order_acquire) != 0;
        return all_reached() || aborted;
    };
    constexpr duration slice = std::chrono::milliseconds(20);
    wait_at(me().bell, spin_, slice, ready, [&] { still_good(behind, ready, reached); });
    if (!all_reached()) throw_if_aborted();
}

inline void shm_communicator::wait_all(counter which, std::uint32_t value) {
    wait_until([&](int r) {
        return detail::at_least((at(r).*which).load(std::memory_order_acquire), value);
    });
}

/// Called between sleeps: throws if waiting for `behind` makes no sense any more. A rank may do its part,
/// leave and end while this one looks at it: hence the second look at what it did.
template <class Ready, class Reached>
void shm_communicator::still_good(int behind, Ready ready, Reached reached) {
    const auto has_left = [&](int r) { return at(r).left.load(std::memory_order_seq_cst) != 0; };
    for (int r = 0; r < size_; ++r) {
        if (r == rank_ || has_left(r)) continue;
        if (is_gone(r) && !has_left(r) && !ready()) {
            blame(
                errc::peer_lost, r,
                fmt::format("its process {} has ended", at(r).pid.load(std::memory_order_relaxed)));
        }
    }
    if (has_left(behind) && !reached(behind)) {
        blame(errc::peer_lost, behind, "it has closed its communicator");
    }
    if (steady_now() < until_) return;
    const auto now_at = static_cast<std::uint32_t>(doing_.sequence);
    for (int r = 0; r < size_; ++r) { // who is really missing, not who waits for the missing one
        if (!detail::at_least(at(r).arrived.load(std::memory_order_acquire), now_at)) behind = r;
    }
    blame(errc::timeout, behind,
          fmt::format("it has not done its part within {:.3g} s", to_seconds(deadline_)));
}

inline void shm_communicator::blame(errc code, int culprit, std::string what) {
    error why(code, fmt::format("rank {} failed in {}: {}", label(culprit),
                                detail::describe(doing_), what));
    abort(why);
    throw_if_aborted(); // an earlier abort by somebody else wins
    throw why;
}

inline bool shm_communicator::is_gone(int r) const noexcept {
    if (watched_.empty()) return false;
    const int pid = at(r).pid.load(std::memory_order_relaxed);
    if (pid == ::getpid()) return false;
    const int fd = watched_[static_cast<std::size_t>(r)].get();
    if (fd < 0) return ::kill(pid, 0) != 0 && errno == ESRCH;
    pollfd ask{fd, POLLIN, 0};
    return ::poll(&ask, 1, 0) > 0; // readable = the process has ended
}

inline void shm_communicator::abort(error why) noexcept {
    auto& h = head();
    std::uint32_t expected = 0;
    if (h.aborted.compare_exchange_strong(expected, 1, std::memory_order_seq_cst)) {
        const char* text = why.what();
        const std::size_t n = std::min(std::strlen(text), sizeof h.text - 1);
        std::memcpy(h.text, text, n);
        h.text[n] = 0;
        h.code = static_cast<std::uint16_t>(why.code());
        h.aborted.store(2, std::memory_order_seq_cst);
    }
    for (int r = 0; r < size_; ++r) at(r).bell.ring_always();
}

inline void shm_communicator::throw_if_aborted() const {
    std::uint32_t phase = head().aborted.load(std::memory_order_acquire);
    if (phase == 0) return;
    // Phase 1 takes a microsecond, unless the writer died in it.
    for (int i = 0; phase == 1 && i < 1'000'000; ++i) {
        cpu_pause();
        phase = head().aborted.load(std::memory_order_acquire);
    }
    const std::string where = fmt::format("rank {}, {}", label(rank_), detail::describe(doing_));
    if (phase == 1) throw error(errc::aborted, "a rank died while it aborted").with_where(where);
    throw error(static_cast<errc>(head().code), head().text).with_where(where);
}

} // namespace skein::dist

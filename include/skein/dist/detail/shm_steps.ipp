// SPDX-License-Identifier: Apache-2.0
#pragma once
// How data passes through the segment of a shm_communicator.
//
// A step k of a reduction passes one chunk: publish(k) fills the own `in` slot, reduce(k) combines
// one slice and fills the own `out` slot, fetch(k) copies the other slices. Slots are used by
// parity of k:
//   publish(k) needs reduced >= k-1 of all (step k-2 has been read)
//   reduce(k)  needs published >= k+1 of all, and fetched >= k-1 of all (out of step k-2 has been
//   read) fetch(k)   needs reduced >= k+1 of all
// They run as publish(k+1), reduce(k), fetch(k-1), so nobody waits for a peer that keeps pace.

#include <skein/dist/detail/shm_waiting.ipp>
#include <skein/dist/reduce.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace skein::dist {

SKEIN_INLINE void shm_communicator::begin(detail::signature what) {
    until_ = deadline_after(steady_now(), deadline_);
    what.sequence = doing_.sequence + 1;
    what.outer = outer_;
    what.tag = tag_;
    doing_ = what;
    short_ = false;
    throw_if_aborted();
}

/// Says what this rank is doing. Small slots of this parity are free since all arrived at the last.
SKEIN_INLINE void shm_communicator::announce() {
    me().doing[doing_.sequence & 1] = doing_;
    publish(&detail::shm_rank::arrived, static_cast<std::uint32_t>(doing_.sequence));
}

/// Waits until all have arrived, and compares. A peer may be one collective ahead, not two: hence
/// two signatures.
SKEIN_INLINE void shm_communicator::wait_for_all_to_agree() {
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

SKEIN_INLINE void shm_communicator::publish(counter which, std::uint32_t value) noexcept {
    me().core.store(this_core() + 1, std::memory_order_relaxed); // travels with the counter
    (me().*which).store(value, std::memory_order_seq_cst);
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) at(r).bell.ring();
    }
}

/// The first half of an exchange of at most small_bytes of every rank: says what this one brings.
SKEIN_INLINE void shm_communicator::bring_small(const std::byte* bytes, std::size_t n) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    if (n > 0) std::memcpy(layout_.small(segment_.data(), rank_, parity), bytes, n);
    announce();
}

/// The second half, after the meeting: elements [first, first + n) of all, in rank order.
SKEIN_INLINE void shm_communicator::reduce_small(buffer_view in, std::byte* result, dtype into,
                                                 std::size_t first, std::size_t n, reduce_op op,
                                                 int divisor) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    if (n == 0 || result == nullptr) return;
    std::array<const void*, 64> few;
    std::vector<const void*> many(size_ > 64 ? static_cast<std::size_t>(size_) : 0);
    const void** sources = size_ > 64 ? many.data() : few.data();
    for (int r = 0; r < size_; ++r) {
        sources[r] = layout_.small(segment_.data(), r, parity) + first * size_of(in.type);
    }
    reduce(result, into, std::span<const void* const>(sources, static_cast<std::size_t>(size_)), n,
           in.type, op, divisor);
}

/// The second half of a gathering: everybody's part to its place.
SKEIN_INLINE void shm_communicator::take_small(const std::byte* in, std::byte* out,
                                               std::span<const std::size_t> bytes) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    std::size_t at = 0;
    for (std::size_t p = 0; p < bytes.size(); at += bytes[p++]) {
        const bool there = p == static_cast<std::size_t>(rank_) && in == out + at;
        if (bytes[p] == 0 || there) continue;
        std::memcpy(out + at, layout_.small(segment_.data(), static_cast<int>(p), parity),
                    bytes[p]);
    }
}

/// One reduction through the `in` and `out` slots. Slices start on cache lines.
struct shm_communicator::reduction {
    shm_communicator& comm;
    const std::byte* in;
    std::byte* out; // null: nothing of the result is kept here
    std::size_t count;
    dtype type, into; // of `in`, and of the result
    reduce_op op;
    int divisor;
    std::span<const std::size_t> parts; // what each rank gets, in `out`; empty: everybody all of it
    int only_root;                      // whose `out` is filled; negative: everybody's

    std::size_t width = size_of(type), result_width = size_of(into);
    std::size_t ranks = static_cast<std::size_t>(comm.size_);
    std::size_t line = 64 / width;
    std::size_t slice =
        comm.layout_.chunk_bytes() / std::max(width, result_width) / ranks / line * line;
    bool scattered = !parts.empty(); // then a step takes a slice of every part
    std::size_t per_step = scattered ? slice : slice * ranks;
    std::size_t longest = scattered ? *std::max_element(parts.begin(), parts.end()) : count;
    std::uint32_t steps = static_cast<std::uint32_t>((longest + per_step - 1) / per_step);
    std::vector<std::size_t> starts = detail::starts_of(parts);
    std::uint32_t base = comm.steps_;
    std::byte* memory = comm.segment_.data();
    std::size_t mine = static_cast<std::size_t>(comm.rank_);

    struct piece {
        std::size_t at, n, slot; // element in the user's buffer, elements, element in the slot
    };
    [[nodiscard]] piece cut(std::uint32_t k, std::size_t p) const {
        const std::size_t first = k * per_step;
        if (scattered) {
            const std::size_t from = std::min(first, parts[p]);
            return piece{starts[p] + from, std::min(per_step, parts[p] - from), p * slice};
        }
        const std::size_t here = std::min(per_step, count - first);
        const std::size_t share = ((here + ranks - 1) / ranks + line - 1) / line * line;
        const std::size_t from = std::min(p * share, here), to = std::min(from + share, here);
        return piece{first + from, to - from, p * slice};
    }

    void publish_step(std::uint32_t k) {
        comm.wait_all(&detail::shm_rank::reduced, base + k - 1);
        for (std::size_t p = 0; p < ranks; ++p) {
            const piece c = cut(k, p);
            if (p == mine || c.n == 0) continue;
            std::memcpy(comm.layout_.in(memory, comm.rank_, base + k) + c.slot * width,
                        in + c.at * width, c.n * width);
        }
        comm.publish(&detail::shm_rank::published, base + k + 1);
    }

    void reduce_step(std::uint32_t k) {
        comm.wait_all(&detail::shm_rank::published, base + k + 1);
        comm.wait_all(&detail::shm_rank::fetched, base + k - 1);
        const piece c = cut(k, mine);
        std::vector<const void*>& sources = comm.sources_;
        sources.resize(ranks);
        constexpr std::size_t hot = std::size_t{16} << 10; // reduced and copied in the first cache
        const std::size_t some = hot / width;
        for (std::size_t i = 0; i < c.n; i += some) {
            const std::size_t n = std::min(some, c.n - i);
            for (std::size_t p = 0; p < ranks; ++p) {
                sources[p] = p == mine ? in + (c.at + i) * width
                                       : comm.layout_.in(memory, static_cast<int>(p), base + k) +
                                             (c.slot + i) * width;
            }
            std::byte* const handed_out =
                comm.layout_.out(memory, comm.rank_, base + k) + (c.slot + i) * result_width;
            const std::size_t at = scattered ? k * per_step + i : c.at + i;
            std::byte* const result = out != nullptr ? out + at * result_width : handed_out;
            reduce(result, into, sources, n, type, op, divisor);
            if (!scattered && result != handed_out)
                std::memcpy(handed_out, result, n * result_width);
        }
        comm.publish(&detail::shm_rank::reduced, base + k + 1);
    }

    void fetch_step(std::uint32_t k) {
        if (!scattered && (only_root < 0 || only_root == comm.rank_)) {
            comm.wait_all(&detail::shm_rank::reduced, base + k + 1);
            for (std::size_t p = 0; p < ranks; ++p) {
                const piece c = cut(k, p);
                if (p == mine || c.n == 0) continue;
                std::memcpy(out + c.at * result_width,
                            comm.layout_.out(memory, static_cast<int>(p), base + k) +
                                c.slot * result_width,
                            c.n * result_width);
            }
        }
        comm.publish(&detail::shm_rank::fetched, base + k + 1);
    }
};

/// Rank r gets counts[r] elements of the sum, behind those of the ranks before it, in `out`.
SKEIN_INLINE task<void> shm_communicator::reduce_parts(detail::signature what, buffer_view in,
                                                       buffer_view out,
                                                       std::span<const std::size_t> counts,
                                                       reduce_op op) {
    const auto place = place_to_reduce(in);
    what.memory = place.word();
    begin(what);
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t before = detail::starts_of(counts)[mine];
    if (in.bytes() <= layout_.small_bytes()) {
        bring_small(in.begin(), in.bytes());
        meeting all_are_here{*this};
        co_await all_are_here;
        reduce_small(in, out.begin(), out.type, before, counts[mine], op, size_);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory != nullptr) {
        std::byte* const only[] = {out.begin()};
        reduce_in_place(place, before, counts[mine], in.type, out.type, op, size_, only);
        co_return;
    }
    reduce_steps(reduction{.comm = *this,
                           .in = in.begin(),
                           .out = out.begin(),
                           .count = in.count,
                           .type = in.type,
                           .into = out.type,
                           .op = op,
                           .divisor = size_,
                           .parts = counts,
                           .only_root = -1});
}

SKEIN_INLINE void shm_communicator::reduce_steps(reduction r) {
    r.publish_step(0);
    announce();
    wait_for_all_to_agree();
    for (std::uint32_t k = 0; k < r.steps; ++k) {
        if (k + 1 < r.steps) r.publish_step(k + 1);
        r.reduce_step(k);
        if (k > 0) r.fetch_step(k - 1);
    }
    r.fetch_step(r.steps - 1);
    steps_ = r.base + r.steps;
}

/// Every rank r gives bytes[r] and gets all of them, one after the other. `in` is the own part.
SKEIN_INLINE void shm_communicator::gather(const std::byte* in, std::byte* out,
                                           std::span<const std::size_t> bytes) {
    using r = detail::shm_rank;
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t longest = *std::max_element(bytes.begin(), bytes.end());
    std::byte* const m = segment_.data();
    const std::vector<std::size_t> starts = detail::starts_of(bytes);

    if (longest <= layout_.small_bytes()) {
        bring_small(in, bytes[mine]);
        wait_for_all_to_agree();
        return take_small(in, out, bytes);
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
    announce();
    wait_for_all_to_agree();
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

} // namespace skein::dist

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that the ranks of a segment share beside it, and collectives on what lies in it.
//
// Making it takes two exchanges over the segment: where each rank's memory is, then who has mapped
// it. A collective on it has two meetings: at the first all have come and agree on the place, at
// the second all have done their part. In between rank r alone touches slice r, in all memories, so
// nothing else is needed to keep them apart.

#include <skein/dist/detail/shm_waiting.ipp>
#include <skein/dist/group_memory.hpp>
#include <skein/dist/reduce.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::dist {

namespace detail {

/// One rank's word while memory is made: where its own is, or why there is none.
struct memory_word {
    std::uint16_t failed; // an errc, 0 = good
    char text[510];

    static memory_word good(const std::string& path) { return of(0, path); }
    static memory_word bad(const error& why) {
        return of(static_cast<std::uint16_t>(why.code()),
                  why.text() + (why.cause().empty() ? "" : ": " + why.cause()));
    }

private:
    static memory_word of(std::uint16_t failed, const std::string& text) {
        memory_word w{};
        w.failed = failed;
        std::copy_n(text.data(), std::min(text.size(), sizeof w.text - 1), w.text);
        return w;
    }
};

} // namespace detail

/// The words of all ranks. If one of them failed, that is the error of all, and the group's end.
SKEIN_INLINE std::vector<detail::memory_word> shm_communicator::exchange_words(
    detail::signature what, const detail::memory_word& mine) {
    begin(what);
    std::vector<detail::memory_word> words(static_cast<std::size_t>(size_));
    const std::vector<std::size_t> bytes(words.size(), sizeof mine);
    gather(reinterpret_cast<const std::byte*>(&mine), reinterpret_cast<std::byte*>(words.data()),
           bytes);
    for (std::size_t r = 0; r < words.size(); ++r) {
        if (words[r].failed == 0) continue;
        error why(static_cast<errc>(words[r].failed),
                  fmt::format("rank {} failed in {}: {}", label(static_cast<int>(r)),
                              detail::describe(doing_), words[r].text));
        abort(why);
        throw why;
    }
    return words;
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> shm_communicator::share(std::size_t bytes,
                                                                         memory_kind kind,
                                                                         bool everywhere) {
    const auto what = detail::allocate_call(bytes, kind);
    const bool makes = kind == memory_kind::own || rank_ == 0;
    shared_memory mine;
    auto word = detail::memory_word::good("");
    try {
        if (makes) {
            mine = shared_memory::create(bytes);
            word = detail::memory_word::good(mine.path());
        }
    } catch (const error& e) { // the others learn it in the exchange
        word = detail::memory_word::bad(e);
    }
    const auto words = exchange_words(what, word);

    std::vector<shared_memory> maps(kind == memory_kind::own ? words.size() : 1);
    word = detail::memory_word::good("");
    try {
        for (std::size_t r = 0; r < maps.size(); ++r) {
            const bool is_mine = makes && r == static_cast<std::size_t>(rank_);
            if (!is_mine) maps[r] = shared_memory::attach(words[r].text, bytes);
        }
    } catch (const error& e) {
        word = detail::memory_word::bad(e);
    }
    (void)exchange_words(what, word);
    mine.hide();
    const std::size_t place = kind == memory_kind::own ? static_cast<std::size_t>(rank_) : 0;
    if (makes) maps[place] = std::move(mine);
    auto made = std::shared_ptr<group_memory>(
        new group_memory(bytes, kind, everywhere, std::move(maps), place));
    SKEIN_CHECK(memories_ < 0xffff, "{} memories of one communicator", memories_);
    memory_->add(*made, ++memories_);
    made->listed_ = memory_;
    co_return made;
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> shm_communicator::allocate(std::size_t bytes,
                                                                            memory_kind kind) {
    return share(bytes, kind, true);
}

/// The place of a buffer that is to be reduced, for the signature.
SKEIN_INLINE detail::memory_place shm_communicator::place_to_reduce(buffer_view io) const {
    const auto place = memory_->find(io);
    SKEIN_CHECK(place.memory == nullptr || place.memory->kind() == memory_kind::own,
                "common memory holds one value for all ranks: there is nothing to reduce in it");
    return place;
}

/// Where the ranks find what is gathered: in the memory that `out` lies in, else in that of `in`,
/// if every rank has something there.
SKEIN_INLINE detail::memory_place shm_communicator::place_to_gather(
    buffer_view in, buffer_view out, std::span<const std::size_t> bytes) const {
    auto place = memory_->find(out);
    if (place.memory != nullptr) return place;
    if (std::find(bytes.begin(), bytes.end(), std::size_t{0}) != bytes.end()) return {};
    place = memory_->find(in);
    if (place.memory == nullptr || place.memory->kind() == memory_kind::common) return {};
    place.input = true;
    return place;
}

/// The second meeting; one step of all counters.
SKEIN_INLINE void shm_communicator::finish_together() {
    steps_ += 1;
    me().published.store(steps_, std::memory_order_relaxed);
    me().fetched.store(steps_, std::memory_order_relaxed);
    publish(&detail::shm_rank::reduced, steps_); // the release of all of it
    wait_all(&detail::shm_rank::reduced, steps_);
}

/// Reduces n elements behind element `first` of the memory of all ranks, in rank order, block by
/// block, to each of `results`.
SKEIN_INLINE void shm_communicator::reduce_in_place(detail::memory_place from, std::size_t first,
                                                    std::size_t n, dtype type, dtype into,
                                                    reduce_op op, int divisor,
                                                    std::span<std::byte* const> results) {
    announce();
    wait_for_all_to_agree();
    const std::size_t width = size_of(type), to = size_of(into);
    constexpr std::size_t hot = std::size_t{16} << 10; // reduced and copied in the first cache
    const std::size_t some = hot / width;
    sources_.resize(static_cast<std::size_t>(size_));
    for (std::size_t i = 0; i < n; i += some) {
        const std::size_t here = std::min(some, n - i);
        for (int p = 0; p < size_; ++p) {
            sources_[static_cast<std::size_t>(p)] =
                from.memory->of(p) + from.offset + (first + i) * width;
        }
        reduce(results[0] + i * to, into, sources_, here, type, op, divisor);
        for (const auto& other : results.subspan(1))
            std::memcpy(other + i * to, results[0] + i * to, here * to);
        throw_if_aborted();
    }
    finish_together();
}

/// Every rank reduces its slice, to `root` or to everybody.
SKEIN_INLINE void shm_communicator::reduce_slices(detail::memory_place place, buffer_view io,
                                                  reduce_op op, int divisor, int root) {
    const std::size_t width = size_of(io.type), line = 64 / width;
    const auto ranks = static_cast<std::size_t>(size_), mine = static_cast<std::size_t>(rank_);
    const std::size_t share = ((io.count + ranks - 1) / ranks + line - 1) / line * line;
    const std::size_t first = std::min(mine * share, io.count);
    const std::size_t n = std::min(share, io.count - first);
    std::vector<std::byte*> results;
    for (int p = 0; p < size_; ++p) {
        if (root >= 0 ? p == root : p != rank_)
            results.push_back(place.memory->of(p) + place.offset + first * width);
    }
    if (root < 0) results.insert(results.begin(), io.slice(first, 0).begin());
    reduce_in_place(place, first, n, io.type, io.type, op, divisor, results);
}

/// All-gather when `out` lies in memory of the group, or `in` does, at `place`.
SKEIN_INLINE void shm_communicator::gather_in_place(detail::memory_place place, const std::byte* in,
                                                    std::byte* out,
                                                    std::span<const std::size_t> bytes) {
    const auto starts = detail::starts_of(bytes);
    const auto mine = static_cast<std::size_t>(rank_);
    const bool common = place.memory->kind() == memory_kind::common;
    const auto put_own = [&] {
        if (bytes[mine] > 0 && in != out + starts[mine])
            std::memmove(out + starts[mine], in, bytes[mine]);
    };
    if (!common) put_own(); // nobody reads this memory between two collectives
    announce();
    wait_for_all_to_agree();
    if (common) put_own();
    for (std::size_t p = 0; p < bytes.size() && !common; ++p) {
        if (p == mine) continue;
        const std::byte* const theirs =
            place.memory->of(static_cast<int>(p)) + place.offset + (place.input ? 0 : starts[p]);
        copy_unless_aborted(out + starts[p], theirs, bytes[p]);
    }
    finish_together();
}

SKEIN_INLINE task<void> shm_communicator::gather_anywhere(detail::signature what, buffer_view in,
                                                          buffer_view out,
                                                          std::span<const std::size_t> bytes) {
    const auto place = place_to_gather(in, out, bytes);
    what.memory = place.word();
    begin(what);
    // Small parts pass faster in one exchange; but what is common is written once, by its owner.
    const bool small = *std::max_element(bytes.begin(), bytes.end()) <= layout_.small_bytes();
    const bool common = place.memory != nullptr && place.memory->kind() == memory_kind::common;
    if (small && !common) {
        bring_small(in.begin(), bytes[static_cast<std::size_t>(rank_)]);
        meeting all_are_here{*this};
        co_await all_are_here;
        take_small(in.begin(), out.begin(), bytes);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory == nullptr)
        gather(in.begin(), out.begin(), bytes);
    else
        gather_in_place(place, in.begin(), out.begin(), bytes);
}

/// The root's bytes to all others.
SKEIN_INLINE void shm_communicator::broadcast_in_place(detail::memory_place place, buffer_view io,
                                                       int root) {
    announce();
    wait_for_all_to_agree();
    if (place.memory->kind() == memory_kind::common) return; // all have come: it is there
    if (rank_ != root)
        copy_unless_aborted(io.begin(), place.memory->of(root) + place.offset, io.bytes());
    finish_together();
}

SKEIN_INLINE void shm_communicator::copy_unless_aborted(std::byte* to, const std::byte* from,
                                                        std::size_t n) const {
    constexpr std::size_t some = std::size_t{1} << 20;
    for (std::size_t i = 0; i < n; i += some) {
        throw_if_aborted();
        std::memcpy(to + i, from + i, std::min(some, n - i));
    }
}

} // namespace skein::dist

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives between ranks of one host, through shared memory.
//
// Data passes in cache-sized pieces through two slots per rank. Of every piece rank r reduces its
// own slice over all ranks in rank order, so each element is one sum p0 + p1 + ... on one core, and
// then everybody copies the other slices: 2(N-1)/N of the bytes cross between cores, as in a ring,
// but without a system call. Small operations take one exchange: all publish all, all reduce all.
//
// A small one may begin on the thread that submits it (prompt_start): it says what it brings, looks
// for the others for a moment, and only if they are late goes on where it may sleep.
//
// In memory of the group (allocate) there are no slots: rank r reduces slice r of everybody's
// memory and writes it to everybody's, between two meetings.
//
// Calls block the thread (look for a while, then sleep on a futex), so a rank has a comm thread.
// A waiting rank notices an abort at once, a dead peer process within `slice`, a stalled one at the
// deadline, and names it.

#include <skein/core/unique_fd.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/detail/shm_segment.hpp>
#include <skein/dist/group_memory.hpp>
#include <skein/dist/shared_memory.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace skein::dist {

namespace detail {
struct memory_word;
}

/// One rank's end. make_segment() on the first rank, attach on the others, join() on all once all
/// have attached (bootstrap.hpp does it).
class shm_communicator final : public communicator, private prompt_start {
public:
    /// labels: the names of the members in messages, empty = 0 .. size-1 (hierarchical: world
    /// ranks).
    shm_communicator(shared_memory segment, int rank, int size, std::vector<int> labels = {},
                     shm_options pieces = {}, collective_options limits = {});
    shm_communicator(const shm_communicator&) = delete;
    shm_communicator& operator=(const shm_communicator&) = delete;
    ~shm_communicator() override;

    [[nodiscard]] static std::size_t segment_bytes(int size, shm_options pieces = {});
    /// Once every member has been constructed: from here on the death of their processes is
    /// noticed.
    void join();

    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int world_size() const noexcept override { return size_; }
    [[nodiscard]] std::string name() const override;
    void set_deadline(time_span limit) noexcept override { deadline_ = limit; }
    void set_tag(collective_tag tag) override { tag_ = tag.pack(); }

    task<void> all_reduce(buffer_view io, reduce_op op) override;
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) override;
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                reduce_op op) override;
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                buffer_view out, reduce_op op) override;
    task<void> all_gather(buffer_view in, buffer_view out) override;
    task<void> all_gather_v(buffer_view in, buffer_view out,
                            std::span<const std::size_t> counts) override;
    task<void> broadcast(buffer_view io, int root) override;
    task<void> barrier() override;
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) override;
    task<void> send(buffer_view io, int to) override;
    task<void> recv(buffer_view io, int from) override;
    task<void> close() override;
    void abort(error why) noexcept override;
    [[nodiscard]] prompt_start* prompt() noexcept override { return this; }

    /// The collective that the next ones are parts of; none: they stand alone.
    void set_outer(detail::op_kind kind) noexcept { outer_ = kind; }
    /// Like all_reduce with divisor 1 for mean, but only root's `out` holds the result; io is lost.
    /// out may be io, or f32 for an io of bf16 or f16; the others' out has a type only.
    task<void> reduce_to(buffer_view io, buffer_view out, reduce_op op, int root);

    /// allocate() as a part of a larger group: everywhere is what the memory says of itself.
    task<std::shared_ptr<group_memory>> share(std::size_t bytes, memory_kind kind, bool everywhere);

private:
    using counter = std::atomic<std::uint32_t> detail::shm_rank::*;

    detail::shm_rank& at(int r) const noexcept { return layout_.rank(segment_.data(), r); }
    detail::shm_rank& me() const noexcept { return at(rank_); }
    detail::shm_head& head() const noexcept { return layout_.head(segment_.data()); }
    int label(int r) const noexcept { return labels_[static_cast<std::size_t>(r)]; }

    // doing (detail/shm_steps.ipp)
    void begin(detail::signature what);
    void begin_message(buffer_view io, int peer);
    void announce();
    void wait_for_all_to_agree();
    void bring_small(const std::byte* bytes, std::size_t n);
    void reduce_small(buffer_view in, std::byte* result, dtype into, std::size_t first,
                      std::size_t n, reduce_op op, int divisor);
    struct reduction;
    task<void> reduce_all(detail::signature what, buffer_view in, buffer_view out, reduce_op op,
                          int divisor, int root);
    task<void> reduce_parts(detail::signature what, buffer_view in, buffer_view out,
                            std::span<const std::size_t> counts, reduce_op op);
    void reduce_steps(reduction r);
    void take_small(const std::byte* in, std::byte* out, std::span<const std::size_t> bytes);
    void gather(const std::byte* in, std::byte* out, std::span<const std::size_t> bytes);
    void publish(counter which, std::uint32_t value) noexcept;

    // in memory that all have mapped (detail/shm_memory.ipp)
    std::vector<detail::memory_word> exchange_words(detail::signature what,
                                                    const detail::memory_word& mine);
    detail::memory_place place_to_reduce(buffer_view io) const;
    detail::memory_place place_to_gather(buffer_view in, buffer_view out,
                                         std::span<const std::size_t> bytes) const;
    void reduce_in_place(detail::memory_place from, std::size_t first, std::size_t n, dtype type,
                         dtype into, reduce_op op, int divisor,
                         std::span<std::byte* const> results);
    void reduce_slices(detail::memory_place place, buffer_view io, reduce_op op, int divisor,
                       int root);
    void gather_in_place(detail::memory_place place, const std::byte* in, std::byte* out,
                         std::span<const std::size_t> bytes);
    task<void> gather_anywhere(detail::signature what, buffer_view in, buffer_view out,
                               std::span<const std::size_t> bytes);
    void broadcast_in_place(detail::memory_place place, buffer_view io, int root);
    void copy_unless_aborted(std::byte* to, const std::byte* from, std::size_t n) const;
    void finish_together();

    // beginning on another thread than the loop's (detail/shm_waiting.ipp)
    struct meeting;
    struct own_loop;
    void begin_here() noexcept override { here_ = true; }
    [[nodiscard]] suspended_start end_here() noexcept override;
    [[nodiscard]] bool all_come_soon() noexcept;
    [[nodiscard]] bool needs_this_core(int r) const noexcept;

    // waiting (detail/shm_waiting.ipp)
    template <class Reached>
    void wait_until(Reached reached);
    void wait_all(counter which, std::uint32_t value);
    template <class Ready, class Reached>
    void still_good(int behind, Ready ready, Reached reached);
    [[noreturn]] void blame(errc code, int culprit, std::string what);
    void throw_if_aborted() const;
    bool is_gone(int r) const noexcept;

    shared_memory segment_;
    detail::shm_layout layout_;
    int rank_, size_;
    std::vector<int> labels_;
    time_span deadline_;
    std::vector<unique_fd> watched_; // pidfd of each member, or none
    std::vector<const void*> sources_;
    std::shared_ptr<detail::memory_table> memory_ = std::make_shared<detail::memory_table>();
    std::uint16_t memories_ = 0; // made so far, the same number on all ranks

    detail::signature doing_; // the running collective; sequence grows for ever
    detail::op_kind outer_ = detail::op_kind::none;
    std::uint64_t tag_ = 0;
    std::uint32_t steps_; // steps finished in all collectives so far
    time_point until_{};
    spin_budget spin_;

    bool short_ = false;     // one exchange: a look would cost more than what the other has to do
    bool here_ = false;      // between begin_here() and end_here()
    suspended_start parked_; // what waits to go on elsewhere
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/shm.ipp>
#endif

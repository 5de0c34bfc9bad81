// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives over several hosts with several ranks each: shared memory inside, a ring between.
//
// The first rank of each host leads it. An all-reduce sums inside every host in rank order, goes
// around the ring of leaders, and is handed out inside every host; so only one stream of data
// crosses each network link, however many ranks a host has. The order of the sums depends on the
// placement only. Sums of bf16 and f16 leave a host as float32 and are rounded once, behind the
// last addition.
//
// Lost peers inside a host are noticed by shared memory, others by the ring; each side tells the
// other.

#include <skein/core/bytes.hpp>
#include <skein/core/cancel.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/detail/collective_signature.hpp>
#include <skein/dist/placement.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::dist {

class links;
class ring_communicator;
class shm_communicator;

/// One rank's end; its collectives run on the loop `on`. inside: null for the only rank of a host.
/// between: leaders only, when there are two hosts or more; made with divisor = world size. net
/// carries messages between hosts. labels: what errors and net call the ranks; empty = 0 .. size-1.
class hierarchical_communicator final : public communicator {
public:
    hierarchical_communicator(loop& on, placement where, int rank, int world_size,
                              std::unique_ptr<shm_communicator> inside,
                              std::unique_ptr<ring_communicator> between,
                              std::shared_ptr<links> net, collective_options limits = {},
                              std::vector<int> labels = {});
    hierarchical_communicator(const hierarchical_communicator&) = delete;
    hierarchical_communicator& operator=(const hierarchical_communicator&) = delete;
    ~hierarchical_communicator() override;

    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int world_size() const noexcept override { return size_; }
    [[nodiscard]] std::string name() const override;
    void set_deadline(time_span limit) override { deadline_ = limit; }
    void set_tag(collective_tag tag) override;

    task<void> all_reduce(buffer_view io, reduce_op op) override;
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) override;
    /// Each host's part goes to its leader only, when the ranks of every host are neighbours in
    /// rank order; when they are not, everybody gets everything.
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

private:
    /// What an abort reaches through the loop.
    struct stop_state {
        cancel_source stop;
        std::optional<error> why;
    };
    static void stop_messages(stop_state& s, links* net, const error& why);
    [[nodiscard]] int place_here(int world_rank) const;
    /// Sets what errors say this rank is doing, and how long each part may take. A wait for others
    /// has to outlast theirs, so that the rank that is really missing gets named: ring after host,
    /// the leader's return after the ring.
    void begin(detail::signature what);
    [[nodiscard]] int label(int rank) const { return labels_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] std::string rank_and_call() const;
    [[nodiscard]] time_span patience() const;
    void wait_inside();
    void wait_for_leader();

    /// An error on one side is told to the other before it is thrown.
    task<void> abort_both_on_error(task<void> work);

    task<void> reduce_everywhere(buffer_view io, buffer_view out, reduce_op op);
    task<void> reduce_then_cut(buffer_view in, buffer_view out, reduce_op op);
    task<void> reduce_parts(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                            reduce_op op);
    task<void> sum_inside(buffer_view io, buffer_view to, reduce_op op);
    task<void> reduce_host_parts(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                                 reduce_op op);
    [[nodiscard]] bool sums_travel() const noexcept;
    [[nodiscard]] buffer_view place_of_sums(buffer_view io, dtype into, reduce_op op);
    [[nodiscard]] buffer_view floats(std::size_t count);
    [[nodiscard]] bool hosts_are_neighbours() const;
    task<void> gather(buffer_view in, buffer_view out, std::vector<std::size_t> counts);
    [[nodiscard]] std::vector<std::size_t> sums_per_host(
        const std::vector<std::size_t>& counts) const;
    void put_in_rank_order(const std::vector<std::size_t>& counts, std::size_t width,
                           std::byte* out) const;
    task<void> hand_out(buffer_view io, int root);
    task<void> meet_everywhere();
    task<void> make_memory(std::size_t bytes, memory_kind kind,
                           std::shared_ptr<group_memory>* made);
    task<void> message(buffer_view io, int peer, bool sends);

    loop& on_;
    placement where_;
    int rank_, size_;
    std::vector<int> labels_;
    std::unique_ptr<shm_communicator> inside_;
    std::unique_ptr<ring_communicator> between_;
    std::shared_ptr<links> net_;
    time_span deadline_;
    detail::signature doing_;
    std::uint64_t tag_ = 0;
    std::optional<error> failed_;
    std::shared_ptr<stop_state> stopped_ = std::make_shared<stop_state>();
    byte_buffer work_;
    std::vector<float> wide_; // sums of bf16 and f16 on their way between hosts
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/hierarchical.ipp>
#endif

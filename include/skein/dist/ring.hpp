// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives between hosts: a ring of streams, each rank sends to the next and hears the one
// before.
//
// All-reduce is a reduce-scatter and an all-gather of N-1 steps each: every rank sends and receives
// 2(N-1)/N of the bytes, cut into pieces, so that a piece is sent on while the next one arrives.
// Element sums go around the ring in a fixed order that depends only on N and the element's slice.
// Sums of bf16 and f16: the first step sends elements as they are, partial sums travel as float32,
// and the result is rounded once, before it is gathered. Small operations gather everything and
// reduce in rank order, which halves the steps.
//
// Runs on any network: TCP, Unix sockets, the simulated one. A broken connection fails the group at
// once; an abort travels both ways around the ring, with the name of the rank that caused it.
//
//   source: Patarasu, Yuan: Bandwidth optimal all-reduce algorithms, 2009

#include <skein/core/function.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/detail/collective_signature.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace skein::dist {

class links;

/// Sizes in which data passes through a ring.
struct ring_options {
    std::size_t piece_bytes = std::size_t{1} << 20;  ///< one frame
    std::size_t small_bytes = std::size_t{64} << 10; ///< up to here: gather all, then reduce
};

/// One rank's end. Made by connect(); close() has to be awaited before destruction.
class ring_communicator final : public communicator {
public:
    /// Connects with the neighbours; all members call it.
    ///   group    world ranks of the members, the same on all; position: this rank's index in it
    ///   divisor  what mean divides by; 0 = the size of the group (hierarchical: of the world)
    ///   errors   refused, timeout, permission_denied; names the rank that was not there
    static task<std::unique_ptr<ring_communicator>> connect(std::shared_ptr<links> net,
                                                            std::vector<int> group, int position,
                                                            ring_options pieces = {},
                                                            collective_options limits = {},
                                                            int divisor = 0);
    ring_communicator(const ring_communicator&) = delete;
    ring_communicator& operator=(const ring_communicator&) = delete;
    ~ring_communicator() override;

    [[nodiscard]] int rank() const noexcept override;
    [[nodiscard]] int world_size() const noexcept override;
    [[nodiscard]] std::string name() const override;
    void set_deadline(time_span limit) noexcept override;
    void set_tag(collective_tag tag) override;

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

    /// all_reduce from `in`, which is lost, into `out` of as many elements; of another type when in
    /// is f32: then the sum is rounded once, to bf16 or f16.
    task<void> all_reduce_into(buffer_view in, buffer_view out, reduce_op op);

    /// The collective that the next ones are parts of; none: they stand alone.
    void set_outer(detail::op_kind kind) noexcept;
    /// A barrier in which all say the same.
    task<void> agree(detail::signature what);
    /// Called once, on the loop, when the group has failed.
    void on_failure(unique_function<void(const error&)> listener);

private:
    class core; // what runs on the loop (detail/ring_core.ipp)

    explicit ring_communicator(std::shared_ptr<core> made) noexcept;

    std::shared_ptr<core> core_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/ring.ipp>
#endif

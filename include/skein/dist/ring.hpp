// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives between hosts: a ring of streams, each rank sends to the next and hears the one before.
//
// All-reduce is a reduce-scatter and an all-gather of N-1 steps each: every rank sends and receives
// 2(N-1)/N of the bytes, cut into pieces, so that a piece is sent on while the next one arrives.
// Element sums go around the ring in a fixed order that depends only on N and the element's slice.
// Small operations gather everything and reduce in rank order, which halves the steps.
//
// Runs on any network: TCP, Unix sockets, the simulated one. A broken connection fails the group at
// once; an abort travels both ways around the ring, with the name of the rank that caused it.
//
//   source: Patarasu, Yuan: Bandwidth optimal all-reduce algorithms, 2009

#include <skein/core/all.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/detail/messages.hpp>
#include <skein/dist/detail/ring_frame.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/reduce.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::dist {

/// Sizes in which data passes through a ring.
struct ring_options {
    std::size_t piece_bytes = std::size_t{1} << 20;  ///< one frame
    std::size_t small_bytes = std::size_t{64} << 10; ///< up to here: gather all, then reduce
};

/// One rank's end. Made by connect(); close() has to be awaited before destruction.
class ring_communicator {
public:
    /// Connects with the neighbours; all members call it.
    ///   group    world ranks of the members, the same on all; position: this rank's index in it
    ///   divisor  what mean divides by; 0 = the size of the group (hierarchical: of the world)
    ///   errors   refused, timeout, permission_denied; names the rank that was not there
    static task<std::unique_ptr<ring_communicator>> connect(std::shared_ptr<links> net,
                                                            std::vector<int> group, int position,
                                                            ring_options pieces = {},
                                                            collective_options limits = {},
                                                            int divisor = 0) {
        auto ring = std::unique_ptr<ring_communicator>(new ring_communicator(
            std::move(net), std::move(group), position, pieces, limits, divisor));
        auto meeting = as_result(ring->core_->meet());
        auto met = co_await std::move(meeting);
        if (!met) {
            auto closing = ring->close();
            co_await std::move(closing);
            throw met.error();
        }
        co_return std::move(ring);
    }
    ring_communicator(const ring_communicator&) = delete;
    ring_communicator& operator=(const ring_communicator&) = delete;
    ~ring_communicator() = default;

    [[nodiscard]] int rank() const noexcept { return core_->position; }
    [[nodiscard]] int world_size() const noexcept { return core_->size(); }
    [[nodiscard]] std::string name() const { return fmt::format("ring x{}", core_->size()); }
    void set_deadline(duration limit) noexcept { core_->deadline = limit; }

    task<void> all_reduce(buffer_view io, reduce_op op) { return core_->all_reduce(io, op); }
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) {
        return core_->reduce_scatter(in, out, op);
    }
    task<void> all_gather(buffer_view in, buffer_view out) { return core_->all_gather(in, out); }
    task<void> all_gather_v(buffer_view in, buffer_view out, std::span<const std::size_t> counts) {
        return core_->all_gather_v(in, out, counts);
    }
    task<void> broadcast(buffer_view io, int root) { return core_->broadcast(io, root); }
    task<void> barrier() { return core_->barrier(); }
    task<void> send(buffer_view io, int to) { return core_->send(io, core_->label(to)); }
    task<void> recv(buffer_view io, int from) { return core_->recv(io, core_->label(from)); }
    task<void> close() { return core_->close(); }
    void abort(error why) noexcept;

    /// The collective that the next ones are parts of; none: they stand alone.
    void set_outer(detail::op_kind kind) noexcept { core_->outer = kind; }
    /// Called once, on the loop, when the group has failed.
    void on_failure(unique_function<void(const error&)> told) { core_->told = std::move(told); }

private:
    struct slice {
        std::size_t at = 0, bytes = 0;
    };

    /// What runs on the loop; abort() from another thread reaches it only through the loop.
    struct core : std::enable_shared_from_this<core> {
        core(std::shared_ptr<links> n, std::vector<int> g, int p, ring_options o,
             collective_options l, int d)
            : net(std::move(n)), group(std::move(g)), position(p), pieces(o), deadline(l.deadline),
              divisor(d > 0 ? d : size()), here(loop::current()) {}

        [[nodiscard]] int size() const noexcept { return static_cast<int>(group.size()); }
        [[nodiscard]] int label(int p) const {
            SKEIN_CHECK(p >= 0 && p < size(), "rank {} of {}", p, size());
            return group[static_cast<std::size_t>(p)];
        }
        [[nodiscard]] int next() const { return label((position + 1) % size()); }
        [[nodiscard]] int previous() const { return label((position + size() - 1) % size()); }

        task<void> meet();
        task<void> all_reduce(buffer_view io, reduce_op op);
        task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op);
        task<void> all_gather(buffer_view in, buffer_view out);
        task<void> all_gather_v(buffer_view in, buffer_view out,
                                std::span<const std::size_t> counts);
        task<void> broadcast(buffer_view io, int root);
        task<void> barrier();
        task<void> send(buffer_view io, int to);
        task<void> recv(buffer_view io, int from);
        task<void> close();

        // one collective (detail/ring_steps.hpp)
        struct plan;
        void begin(detail::op_kind kind, std::uint64_t count, dtype type, reduce_op op,
                   std::uint64_t more);
        task<void> run(plan& p);
        task<void> run_sender(plan& p);
        task<void> run_receiver(plan& p);
        static constexpr std::uint32_t first_word = 0xffffffff; // the frame that opens a chain
        task<void> send_frame(std::uint32_t step, byte_span data);
        task<void> hear(std::uint32_t step, std::size_t n, std::byte* direct);
        task<void> read_frame(std::uint32_t step, std::size_t n, std::byte* direct);
        std::vector<slice> even_slices(std::size_t count, std::size_t width) const;

        // failing (detail/ring_failure.hpp)
        task<void> guarded(task<void> work);
        task<void> watch_next();
        void fail(error why);
        task<void> spread(error why);
        task<void> wait_until_spread();
        task<void> wait_for_failure();
        task<detail::ring_header> decode_notice(byte_span head);
        task<error> read_notice(net::stream& s, detail::ring_header h, int from, byte_span already);
        [[nodiscard]] error blamed(errc code, int culprit, const std::string& what) const;
        [[nodiscard]] std::string where() const;
        void throw_if_failed() const;

        std::shared_ptr<links> net;
        std::vector<int> group;
        int position;
        ring_options pieces;
        duration deadline;
        int divisor;
        loop& here;

        net::stream* out = nullptr; // to the next; its other direction carries notices to us
        net::stream* in = nullptr;  // from the previous; its other direction carries our notices
        detail::signature doing;
        detail::op_kind outer = detail::op_kind::none;
        bool busy = false;    // a collective or message runs
        bool writing = false; // in the middle of a frame: nothing else may be written to out
        bool heard = false;   // the previous rank has begun this collective
        bool next_left = false;
        bool closed = false;
        std::optional<error> failed;
        cancel_source stop; // of the running collective
        event quiet;        // set while nothing runs
        wait_queue moved;   // progress inside a collective
        event failure_known, spread_done;
        unique_function<void(const error&)> told;
        byte_buffer scratch, work;
        scope tasks;
    };

    ring_communicator(std::shared_ptr<links> net, std::vector<int> group, int position,
                      ring_options pieces, collective_options limits, int divisor)
        : core_(std::make_shared<core>(std::move(net), std::move(group), position, pieces, limits,
                                       divisor)) {}

    std::shared_ptr<core> core_;
};

} // namespace skein::dist

#include <skein/dist/detail/ring_failure.hpp>
#include <skein/dist/detail/ring_steps.hpp>

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of one rank of a ring, and what it does step by step; for the other files of the ring.

#include <skein/core/all.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/detail/messages.ipp>
#include <skein/dist/detail/ring_frame.ipp>
#include <skein/dist/detail/stream_io.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/reduce.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::dist {

/// What runs on the loop; abort() from another thread reaches it only through the loop.
struct ring_communicator::core : std::enable_shared_from_this<core> {
    core(std::shared_ptr<links> n, std::vector<int> g, int p, ring_options o, collective_options l,
         int d)
        : net(std::move(n)), group(std::move(g)), position(p), pieces(o), deadline(l.deadline),
          divisor(d > 0 ? d : size()), here(loop::current()) {}

    [[nodiscard]] int size() const noexcept { return static_cast<int>(group.size()); }
    [[nodiscard]] int label(int p) const {
        SKEIN_CHECK(p >= 0 && p < size(), "rank {} of {}", p, size());
        return group[static_cast<std::size_t>(p)];
    }
    [[nodiscard]] int next() const { return label((position + 1) % size()); }
    [[nodiscard]] int previous() const { return label((position + size() - 1) % size()); }

    struct slice {
        std::size_t at = 0, bytes = 0;
    };

    task<void> meet();
    task<void> all_reduce(buffer_view io, reduce_op op);
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op);
    task<void> all_gather(buffer_view in, buffer_view out);
    task<void> all_gather_v(buffer_view in, buffer_view out, std::span<const std::size_t> counts);
    task<void> broadcast(buffer_view io, int root);
    task<void> barrier();
    task<void> send(buffer_view io, int to);
    task<void> recv(buffer_view io, int from);
    task<void> close();

    // one collective (detail/ring_steps.ipp)
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

    // failing (detail/ring_failure.ipp)
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

} // namespace skein::dist

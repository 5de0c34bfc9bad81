// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of one rank of a ring, and what it does step by step; for the other files of the ring.

#include <skein/core/all.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
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
class ring_communicator::core {
public:
    core(std::shared_ptr<links> net, std::vector<int> group, int position, ring_options pieces,
         collective_options limits, int divisor)
        : net_(std::move(net)), group_(std::move(group)), position_(position), pieces_(pieces),
          deadline_(limits.deadline), divisor_(divisor > 0 ? divisor : size()),
          here_(loop::current()) {}

    [[nodiscard]] int size() const noexcept { return static_cast<int>(group_.size()); }
    [[nodiscard]] int position() const noexcept { return position_; }
    [[nodiscard]] loop& on() const noexcept { return here_; }
    void set_deadline(time_span limit) noexcept { deadline_ = limit; }
    void set_tag(collective_tag tag) { tag_ = tag.pack(); }
    void set_outer(detail::op_kind kind) noexcept { outer_ = kind; }
    void on_failure(unique_function<void(const error&)> listener) {
        if (failed_)
            listener(*failed_);
        else
            failure_listener_ = std::move(listener);
    }

    task<void> connect_neighbours();
    task<void> all_reduce(buffer_view in, buffer_view out, reduce_op op);
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op);
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts, reduce_op op);
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                buffer_view out, reduce_op op);
    task<void> all_gather(buffer_view in, buffer_view out);
    task<void> all_gather_v(buffer_view in, buffer_view out, std::span<const std::size_t> counts);
    task<void> broadcast(buffer_view io, int root);
    task<void> barrier();
    task<void> agree(detail::signature what);
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind);
    task<void> send(buffer_view io, int to);
    task<void> recv(buffer_view io, int from);
    task<void> close();
    /// The first error wins, goes to both neighbours, and ends what runs.
    void fail(error why);

private:
    struct slice {
        std::size_t at = 0, count = 0; // elements
    };
    struct plan;
    class late_watch;

    /// The world rank at a place of the ring.
    [[nodiscard]] int label(int place) const {
        SKEIN_CHECK(place >= 0 && place < size(), "rank {} of {}", place, size());
        return group_[static_cast<std::size_t>(place)];
    }
    [[nodiscard]] int next() const { return label((position_ + 1) % size()); }
    [[nodiscard]] int previous() const { return label((position_ + size() - 1) % size()); }

    // one collective (detail/ring_steps.ipp)
    void begin(detail::signature what);
    task<void> run(plan& p);
    task<void> run_sender(plan& p);
    task<void> run_receiver(plan& p);
    task<void> gather(plan& p, buffer_view own);
    task<void> wait_for_place(const plan& p, std::uint32_t frame, int step);
    void add(const plan& p, std::uint32_t frame, std::byte* dst);
    void prepare(plan& p);
    task<void> send_frame(std::uint32_t step, byte_span data);
    task<void> receive_frame(std::uint32_t step, std::size_t n, std::byte* direct);
    task<void> read_frame(std::uint32_t step, std::size_t n, std::byte* direct);
    void check_frame(const detail::ring_header& h, std::uint32_t step, std::size_t n) const;
    std::vector<slice> even_slices(std::size_t count, std::size_t width) const;
    std::vector<slice> equal_slices(std::size_t count) const;
    static std::vector<slice> uneven_slices(std::span<const std::size_t> counts);
    plan reduction(buffer_view in, dtype into, reduce_op op, bool in_place) const;
    static constexpr time_constants times = time_constants::lan();
    static constexpr std::uint32_t first_word = 0xffffffff; // the frame that opens a chain

    // failing (detail/ring_failure.ipp)
    task<void> finish_in_time(task<void> work);
    task<void> judge(error why, int late_rank);
    task<void> watch_next();
    task<void> tell_neighbours(error why);
    task<void> wait_until_told();
    task<void> wait_for_failure();
    task<error> read_notice(net::stream& s, detail::ring_header h, int from, byte_span already);
    [[nodiscard]] error blamed(errc code, int culprit, const std::string& what) const;
    [[nodiscard]] std::string where() const;
    void throw_if_failed() const;

    std::shared_ptr<links> net_;
    std::vector<int> group_; // world ranks
    int position_;
    ring_options pieces_;
    time_span deadline_;
    int divisor_;
    loop& here_;
    net::stream* out_ = nullptr; // to the next; its other direction carries notices to us
    net::stream* in_ = nullptr;  // from the previous; its other direction carries our notices

    // the running collective
    detail::signature doing_;
    detail::op_kind outer_ = detail::op_kind::none;
    std::uint64_t tag_ = 0;
    bool busy_ = false;    // a collective or message runs
    bool writing_ = false; // in the middle of a frame: nothing else may be written to out_
    bool heard_ = false;   // the previous rank has begun this collective
    cancel_source stop_;   // ends it
    event quiet_;          // set while nothing runs
    wait_queue moved_;     // progress inside it
    byte_buffer scratch_, work_;

    // the end
    bool next_left_ = false;
    bool closed_ = false;
    std::optional<error> failed_;
    event failure_known_, neighbours_told_;
    unique_function<void(const error&)> failure_listener_;
    scope tasks_;
};

} // namespace skein::dist

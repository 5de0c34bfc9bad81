// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives in two levels, and who tells whom of a failure.

#include <skein/core/awaitable.hpp>
#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/detail/hierarchical_sums.ipp>
#include <skein/dist/detail/host_call.hpp>
#include <skein/dist/detail/messages.ipp>
#include <skein/dist/links.hpp>
#include <skein/dist/ring.hpp>
#include <skein/dist/shm.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE hierarchical_communicator::hierarchical_communicator(
    loop& on, placement where, int rank, int world_size, std::unique_ptr<shm_communicator> inside,
    std::unique_ptr<ring_communicator> between, std::shared_ptr<links> net,
    collective_options limits, std::vector<int> labels)
    : on_(on), where_(std::move(where)), rank_(rank), size_(world_size), labels_(std::move(labels)),
      inside_(std::move(inside)), between_(std::move(between)), net_(std::move(net)),
      deadline_(limits.deadline) {
    for (int r = static_cast<int>(labels_.size()); r < size_; ++r) labels_.push_back(r);
    SKEIN_CHECK(inside_ || where_.mine().size() == 1, "ranks of one host without shared memory");
    SKEIN_CHECK(between_ || where_.my_place != 0 || where_.hosts.size() == 1,
                "a leader without a ring");
    if (between_) {
        between_->on_failure([shm = inside_.get(), s = stopped_, net = net_](const error& why) {
            if (shm != nullptr) shm->abort(why);
            stop_messages(*s, net.get(), why);
        });
    }
}

SKEIN_INLINE hierarchical_communicator::~hierarchical_communicator() = default;

SKEIN_INLINE std::string hierarchical_communicator::name() const {
    return fmt::format("hierarchical x{} on {} hosts", size_, where_.hosts.size());
}

SKEIN_INLINE void hierarchical_communicator::set_tag(collective_tag tag) {
    tag_ = tag.pack();
    if (inside_) inside_->set_tag(tag);
    if (between_) between_->set_tag(tag);
}

SKEIN_INLINE task<void> hierarchical_communicator::all_reduce(buffer_view io, reduce_op op) {
    begin(detail::all_reduce_call(io, op));
    return abort_both_on_error(reduce_everywhere(io, io, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                                  reduce_op op) {
    begin(detail::reduce_scatter_call(in, out, op, size_));
    return abort_both_on_error(reduce_then_cut(in, out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, op, size_));
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    const auto mine = static_cast<std::size_t>(rank_);
    const auto out = io.slice(detail::starts_of(counts)[mine], counts[mine]);
    return abort_both_on_error(reduce_parts(io, std::move(owned), out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, buffer_view out, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, out, op, rank_, size_));
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    return abort_both_on_error(reduce_parts(io, std::move(owned), out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::all_gather(buffer_view in, buffer_view out) {
    begin(detail::all_gather_call(in, out, size_));
    std::vector<std::size_t> counts(static_cast<std::size_t>(size_), in.count);
    return abort_both_on_error(gather(in, out, std::move(counts)));
}

SKEIN_INLINE task<void> hierarchical_communicator::all_gather_v(
    buffer_view in, buffer_view out, std::span<const std::size_t> counts) {
    begin(detail::all_gather_v_call(in, out, counts, rank_, size_));
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    return abort_both_on_error(gather(in, out, std::move(owned)));
}

SKEIN_INLINE task<void> hierarchical_communicator::broadcast(buffer_view io, int root) {
    begin(detail::broadcast_call(io, root, size_));
    return abort_both_on_error(hand_out(io, root));
}

SKEIN_INLINE task<void> hierarchical_communicator::barrier() {
    begin(detail::barrier_call());
    return abort_both_on_error(meet_everywhere());
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> hierarchical_communicator::allocate(
    std::size_t bytes, memory_kind kind) {
    begin(detail::allocate_call(bytes, kind));
    std::shared_ptr<group_memory> made;
    auto making = abort_both_on_error(make_memory(bytes, kind, &made));
    co_await std::move(making);
    co_return made;
}

SKEIN_INLINE task<void> hierarchical_communicator::send(buffer_view io, int to) {
    begin(detail::message_call(io, to, rank_, size_));
    if (const int p = place_here(to); p >= 0) return abort_both_on_error(inside_->send(io, p));
    return abort_both_on_error(message(io, to, true));
}

SKEIN_INLINE task<void> hierarchical_communicator::recv(buffer_view io, int from) {
    begin(detail::message_call(io, from, rank_, size_));
    if (const int p = place_here(from); p >= 0) return abort_both_on_error(inside_->recv(io, p));
    return abort_both_on_error(message(io, from, false));
}

SKEIN_INLINE task<void> hierarchical_communicator::close() {
    if (inside_) {
        auto leaving = inside_->close();
        co_await std::move(leaving);
    }
    if (between_) {
        auto closing = between_->close();
        co_await std::move(closing);
    }
    if (net_) {
        auto stopping = net_->stop();
        co_await std::move(stopping);
    }
}

SKEIN_INLINE void hierarchical_communicator::abort(error why) noexcept {
    try {
        on_.post_from_any_thread(
            [s = stopped_, net = net_, why] { stop_messages(*s, net.get(), why); });
    } catch (...) { // out of memory: the deadline will end messages
    }
    if (inside_) inside_->abort(why);
    if (between_) between_->abort(std::move(why));
}

SKEIN_INLINE void hierarchical_communicator::stop_messages(stop_state& s, links* net,
                                                           const error& why) {
    if (s.why) return;
    s.why = why;
    if (net != nullptr) net->abandon(why);
    s.stop.request();
}

SKEIN_INLINE int hierarchical_communicator::place_here(int world_rank) const {
    const auto& here = where_.mine();
    const auto found = std::find(here.begin(), here.end(), world_rank);
    return found == here.end() ? -1 : static_cast<int>(found - here.begin());
}

SKEIN_INLINE void hierarchical_communicator::begin(detail::signature what) {
    const auto kind = what.kind;
    what.sequence = doing_.sequence + (kind == detail::op_kind::message ? 0 : 1);
    what.tag = tag_;
    doing_ = what;
    if (failed_) throw *failed_;
    if (stopped_->why) throw detail::error_at(*stopped_->why, rank_and_call());
    // The parts of a collective are told apart from the same parts of another one.
    const auto outer = kind == detail::op_kind::message ? detail::op_kind::none : kind;
    if (inside_) inside_->set_outer(outer);
    if (between_) between_->set_outer(outer);
    wait_inside();
    const bool alone = where_.mine().size() == 1;
    if (between_) between_->set_deadline(alone ? deadline_ : deadline_ + patience());
}

SKEIN_INLINE std::string hierarchical_communicator::rank_and_call() const {
    return fmt::format("rank {}, {}", label(rank_), detail::describe(doing_));
}

SKEIN_INLINE time_span hierarchical_communicator::patience() const {
    return deadline_ / 2 + time_constants::lan().ring_grace_least;
}

SKEIN_INLINE void hierarchical_communicator::wait_inside() {
    if (inside_) inside_->set_deadline(deadline_);
}

SKEIN_INLINE void hierarchical_communicator::wait_for_leader() {
    if (inside_) inside_->set_deadline(deadline_ + 3 * patience());
}

SKEIN_INLINE task<void> hierarchical_communicator::abort_both_on_error(task<void> work) {
    auto outcome = as_result(std::move(work));
    auto ended = co_await std::move(outcome);
    if (ended) co_return;
    const auto& why = ended.error();
    abort(why);
    failed_ = detail::error_at(why, rank_and_call());
    throw *failed_;
}

/// Whether the parts of each host lie one after the other in rank order.
SKEIN_INLINE bool hierarchical_communicator::hosts_are_neighbours() const {
    int next = 0;
    for (const auto& host : where_.hosts) {
        for (const int r : host) {
            if (r != next++) return false;
        }
    }
    return true;
}

/// Gathered host by host, and put into rank order where that is another one.
SKEIN_INLINE task<void> hierarchical_communicator::gather(buffer_view in, buffer_view out,
                                                          std::vector<std::size_t> counts) {
    const std::vector<std::size_t> per_host = sums_per_host(counts);
    const auto mine = static_cast<std::size_t>(where_.my_host);
    const std::size_t before = detail::starts_of(per_host)[mine];
    std::vector<std::size_t> here;
    for (const int r : where_.mine()) here.push_back(counts[static_cast<std::size_t>(r)]);

    const bool in_order = hosts_are_neighbours();
    if (!in_order) work_.resize(std::max(work_.size(), out.bytes()));
    const buffer_view all = in_order ? out : buffer_view{work_.data(), out.count, in.type};
    const buffer_view ours = all.slice(before, per_host[mine]);
    if (inside_) {
        auto local = inside_->all_gather_v(in, ours, here);
        co_await std::move(local);
    } else if (in.count > 0 && ours.data != in.data) {
        std::memcpy(ours.data, in.data, in.bytes());
    }
    if (between_) {
        auto global = between_->all_gather_v(ours, all, per_host);
        co_await std::move(global);
    }
    if (inside_ && where_.hosts.size() > 1) {
        wait_for_leader();
        auto back = inside_->broadcast(all, 0);
        co_await std::move(back);
    }
    if (!in_order) put_in_rank_order(counts, size_of(in.type), out.begin());
}

SKEIN_INLINE std::vector<std::size_t> hierarchical_communicator::sums_per_host(
    const std::vector<std::size_t>& counts) const {
    std::vector<std::size_t> sums;
    for (const auto& host : where_.hosts) {
        sums.push_back(0);
        for (const int r : host) sums.back() += counts[static_cast<std::size_t>(r)];
    }
    return sums;
}

/// work_ has the parts of all ranks, host by host.
SKEIN_INLINE void hierarchical_communicator::put_in_rank_order(
    const std::vector<std::size_t>& counts, std::size_t width, std::byte* out) const {
    const std::vector<std::size_t> starts = detail::starts_of(counts);
    std::size_t from = 0;
    for (const auto& host : where_.hosts) {
        for (const int r : host) {
            const auto k = static_cast<std::size_t>(r);
            if (counts[k] > 0) {
                std::memcpy(out + starts[k] * width, work_.data() + from * width,
                            counts[k] * width);
            }
            from += counts[k];
        }
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::hand_out(buffer_view io, int root) {
    int root_host = 0;
    for (std::size_t h = 0; h < where_.hosts.size(); ++h) {
        const auto& members = where_.hosts[h];
        if (std::find(members.begin(), members.end(), root) != members.end())
            root_host = static_cast<int>(h);
    }
    const bool here = root_host == where_.my_host;
    if (here && inside_) {
        auto local = inside_->broadcast(io, place_here(root));
        co_await std::move(local);
    }
    if (between_) {
        auto global = between_->broadcast(io, root_host);
        co_await std::move(global);
    }
    if (!here && inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(io, 0);
        co_await std::move(back);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::meet_everywhere() {
    if (inside_) {
        auto come = inside_->barrier();
        co_await std::move(come);
    }
    if (between_) {
        auto all = between_->barrier();
        co_await std::move(all);
    }
    if (inside_) {
        wait_for_leader();
        auto go = inside_->barrier();
        co_await std::move(go);
    }
}

/// Shared inside each host; nobody has it before everybody has.
SKEIN_INLINE task<void> hierarchical_communicator::make_memory(
    std::size_t bytes, memory_kind kind, std::shared_ptr<group_memory>* made) {
    const bool everywhere = where_.hosts.size() == 1;
    if (inside_) {
        auto sharing = inside_->share(bytes, kind, everywhere);
        *made = co_await std::move(sharing);
    } else {
        try {
            *made = group_memory::alone(bytes, kind, everywhere);
        } catch (const error& e) {
            throw detail::no_memory(label(rank_), doing_, e);
        }
    }
    if (between_) {
        auto agreeing = between_->agree(detail::allocate_call(bytes, kind));
        co_await std::move(agreeing);
    }
    if (inside_ && !everywhere) {
        wait_for_leader();
        auto go = inside_->barrier();
        co_await std::move(go);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::message(buffer_view io, int peer, bool sends) {
    const detail::signature what = doing_;
    const time_point until = deadline_after(loop::current().now(), deadline_);
    auto work = sends ? detail::send_message(*net_, io, label(peer), what, until)
                      : detail::recv_message(*net_, io, label(peer), what, until);
    auto stoppable = with_cancel(stopped_->stop.token(), std::move(work));
    auto limited = as_result(with_deadline(std::move(stoppable), until));
    auto ended = co_await std::move(limited);
    if (ended) co_return;
    if (ended.error().code() == errc::cancelled && stopped_->why) throw *stopped_->why;
    if (ended.error().code() != errc::timeout) throw ended.error();
    throw error(errc::timeout,
                fmt::format("rank {} failed in {}: it has not done its part within {:.3g} s",
                            label(peer), detail::describe(what), to_seconds(deadline_)));
}

} // namespace skein::dist

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives in two levels, and who tells whom of a failure.

#include <skein/core/awaitable.hpp>
#include <skein/core/check.hpp>
#include <skein/core/timeout.hpp>
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

SKEIN_INLINE std::vector<int> placement::leaders() const {
    std::vector<int> first;
    for (const auto& h : hosts) first.push_back(h.front());
    return first;
}

SKEIN_INLINE placement placement::from(const std::vector<std::string>& host_of, int rank) {
    placement p;
    std::vector<std::string> names;
    for (std::size_t r = 0; r < host_of.size(); ++r) {
        const auto known = std::find(names.begin(), names.end(), host_of[r]);
        const auto h = static_cast<std::size_t>(known - names.begin());
        if (known == names.end()) {
            names.push_back(host_of[r]);
            p.hosts.emplace_back();
        }
        if (static_cast<int>(r) == rank) {
            p.my_host = static_cast<int>(h);
            p.my_place = static_cast<int>(p.hosts[h].size());
        }
        p.hosts[h].push_back(static_cast<int>(r));
    }
    return p;
}

SKEIN_INLINE hierarchical_communicator::hierarchical_communicator(
    loop& on, placement where, int rank, int world_size, std::unique_ptr<shm_communicator> inside,
    std::unique_ptr<ring_communicator> between, std::shared_ptr<links> net,
    collective_options limits)
    : on_(on), where_(std::move(where)), rank_(rank), size_(world_size), inside_(std::move(inside)),
      between_(std::move(between)), net_(std::move(net)), deadline_(limits.deadline) {
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

SKEIN_INLINE task<void> hierarchical_communicator::all_reduce(buffer_view io, reduce_op op) {
    begin(detail::op_kind::all_reduce, io, op, 0);
    return told(reduce_everywhere(io, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                                  reduce_op op) {
    SKEIN_CHECK(in.type == out.type && in.type != dtype::u8 &&
                    in.count == out.count * static_cast<std::size_t>(size_),
                "reduce_scatter of {} elements into {} on {} ranks", in.count, out.count, size_);
    begin(detail::op_kind::reduce_scatter, in, op, 0);
    return told(reduce_then_cut(in, out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::all_gather(buffer_view in, buffer_view out) {
    SKEIN_CHECK(in.type == out.type && out.count == in.count * static_cast<std::size_t>(size_),
                "all_gather of {} elements into {} on {} ranks", in.count, out.count, size_);
    std::vector<std::size_t> counts(static_cast<std::size_t>(size_), in.count);
    begin(detail::op_kind::all_gather, out, reduce_op::sum, 0);
    return told(gather(in, out, std::move(counts)));
}

SKEIN_INLINE task<void> hierarchical_communicator::all_gather_v(
    buffer_view in, buffer_view out, std::span<const std::size_t> counts) {
    SKEIN_CHECK(counts.size() == static_cast<std::size_t>(size_) && in.type == out.type &&
                    in.count == counts[static_cast<std::size_t>(rank_)],
                "all_gather_v: {} counts for {} ranks, own part {}", counts.size(), size_,
                in.count);
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    begin(detail::op_kind::all_gather_v, out, reduce_op::sum, 0);
    return told(gather(in, out, std::move(owned)));
}

SKEIN_INLINE task<void> hierarchical_communicator::broadcast(buffer_view io, int root) {
    SKEIN_CHECK(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
    begin(detail::op_kind::broadcast, io, reduce_op::sum, root);
    return told(hand_out(io, root));
}

SKEIN_INLINE task<void> hierarchical_communicator::barrier() {
    begin(detail::op_kind::barrier, buffer_view{}, reduce_op::sum, 0);
    return told(meet());
}

SKEIN_INLINE task<void> hierarchical_communicator::send(buffer_view io, int to) {
    SKEIN_CHECK(to >= 0 && to < size_ && to != rank_, "send from rank {} to {} of {}", rank_, to,
                size_);
    begin(detail::op_kind::message, io, reduce_op::sum, to);
    if (const int p = place_here(to); p >= 0) return told(inside_->send(io, p));
    return told(message(io, to, true));
}

SKEIN_INLINE task<void> hierarchical_communicator::recv(buffer_view io, int from) {
    SKEIN_CHECK(from >= 0 && from < size_ && from != rank_, "recv on rank {} from {} of {}", rank_,
                from, size_);
    begin(detail::op_kind::message, io, reduce_op::sum, from);
    if (const int p = place_here(from); p >= 0) return told(inside_->recv(io, p));
    return told(message(io, from, false));
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

SKEIN_INLINE void hierarchical_communicator::begin(detail::op_kind kind, buffer_view of,
                                                   reduce_op op, int more) {
    if (kind != detail::op_kind::message) doing_.sequence += 1;
    doing_.kind = kind;
    doing_.count = of.count;
    doing_.type = of.type;
    doing_.op = op;
    doing_.detail = static_cast<std::uint64_t>(more);
    if (failed_) throw *failed_;
    if (stopped_->why) {
        throw error(stopped_->why->code(), stopped_->why->what())
            .with_where(fmt::format("rank {}, {}", rank_, detail::describe(doing_)));
    }
    // The parts of a collective are told apart from the same parts of another one.
    const auto outer = kind == detail::op_kind::message ? detail::op_kind::none : kind;
    if (inside_) inside_->set_outer(outer);
    if (between_) between_->set_outer(outer);
    wait_inside();
    const bool alone = where_.mine().size() == 1;
    if (between_) between_->set_deadline(alone ? deadline_ : deadline_ + patience());
}

SKEIN_INLINE duration hierarchical_communicator::patience() const {
    return deadline_ / 2 + std::chrono::milliseconds(500);
}

SKEIN_INLINE void hierarchical_communicator::wait_inside() {
    if (inside_) inside_->set_deadline(deadline_);
}

SKEIN_INLINE void hierarchical_communicator::wait_for_leader() {
    if (inside_) inside_->set_deadline(deadline_ + 3 * patience());
}

SKEIN_INLINE task<void> hierarchical_communicator::told(task<void> work) {
    auto outcome = as_result(std::move(work));
    auto ended = co_await std::move(outcome);
    if (ended) co_return;
    const auto& why = ended.error();
    abort(why);
    failed_ = error(why.code(), why.what())
                  .with_where(fmt::format("rank {}, {}", rank_, detail::describe(doing_)));
    throw *failed_;
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_everywhere(buffer_view io, reduce_op op) {
    if (where_.hosts.size() == 1) { // inside_ knows the divisor of mean
        auto all = inside_->all_reduce(io, op);
        co_await std::move(all);
        co_return;
    }
    if (inside_) {
        auto local = inside_->reduce_to(io, op == reduce_op::mean ? reduce_op::sum : op, 0);
        co_await std::move(local);
    }
    if (between_) {
        auto global = between_->all_reduce(io, op);
        co_await std::move(global);
    }
    if (inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(io, 0);
        co_await std::move(back);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_then_cut(buffer_view in, buffer_view out,
                                                                   reduce_op op) {
    work_.resize(std::max(work_.size(), in.bytes()));
    const buffer_view whole{work_.data(), in.count, in.type};
    if (in.count > 0) std::memcpy(whole.data, in.data, in.bytes());
    auto reducing = reduce_everywhere(whole, op);
    co_await std::move(reducing);
    if (out.count > 0) {
        std::memcpy(out.data,
                    whole.slice(static_cast<std::size_t>(rank_) * out.count, out.count).data,
                    out.bytes());
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::gather(buffer_view in, buffer_view out,
                                                          std::vector<std::size_t> counts) {
    // Gathered host by host, then put into rank order.
    std::vector<std::size_t> per_host, here;
    std::size_t before = 0, total = 0;
    for (std::size_t h = 0; h < where_.hosts.size(); ++h) {
        std::size_t sum = 0;
        for (const int r : where_.hosts[h]) {
            const std::size_t c = counts[static_cast<std::size_t>(r)];
            if (static_cast<int>(h) == where_.my_host) here.push_back(c);
            sum += c;
        }
        if (static_cast<int>(h) < where_.my_host) before += sum;
        per_host.push_back(sum);
        total += sum;
    }
    SKEIN_CHECK(out.count == total, "all_gather_v: counts add up to {}, out has {}", total,
                out.count);
    const std::size_t width = size_of(in.type);
    work_.resize(std::max(work_.size(), total * width));
    const buffer_view all{work_.data(), total, in.type};
    const buffer_view ours = all.slice(before, per_host[static_cast<std::size_t>(where_.my_host)]);
    if (inside_) {
        auto local = inside_->all_gather_v(in, ours, here);
        co_await std::move(local);
    } else if (in.count > 0) {
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
    std::vector<std::size_t> starts(counts.size());
    for (std::size_t r = 1; r < counts.size(); ++r) starts[r] = starts[r - 1] + counts[r - 1];
    std::size_t from = 0;
    for (const auto& host : where_.hosts) {
        for (const int r : host) {
            const auto k = static_cast<std::size_t>(r);
            if (counts[k] > 0) {
                std::memcpy(out.begin() + starts[k] * width, work_.data() + from * width,
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

SKEIN_INLINE task<void> hierarchical_communicator::meet() {
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

SKEIN_INLINE task<void> hierarchical_communicator::message(buffer_view io, int peer, bool sends) {
    const detail::signature what = doing_;
    const time_point until = deadline_after(loop::current().now(), deadline_);
    auto work = sends ? detail::send_message(*net_, io, peer, what, until)
                      : detail::recv_message(*net_, io, peer, what, until);
    auto stoppable = with_cancel(stopped_->stop.token(), std::move(work));
    auto limited = as_result(with_deadline(std::move(stoppable), until));
    auto ended = co_await std::move(limited);
    if (ended) co_return;
    if (ended.error().code() == errc::cancelled && stopped_->why) throw *stopped_->why;
    if (ended.error().code() != errc::timeout) throw ended.error();
    throw error(errc::timeout,
                fmt::format("rank {} failed in {}: it has not done its part within {:.3g} s", peer,
                            detail::describe(what), to_seconds(deadline_)));
}

} // namespace skein::dist

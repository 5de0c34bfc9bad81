// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/dist/host_communicator.hpp>.

#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

/// Parts in pinned memory begin at multiples of it.
inline constexpr std::size_t pinned_alignment = 64;

[[nodiscard]] SKEIN_INLINE std::size_t pinned_bytes(buffer_view of) noexcept {
    if (of.where.is_cpu()) return 0;
    return (of.bytes() + pinned_alignment - 1) / pinned_alignment * pinned_alignment;
}

[[nodiscard]] SKEIN_INLINE bool on_host(std::span<const buffer_view> all) noexcept {
    return std::ranges::all_of(all, [](const buffer_view& v) { return v.where.is_cpu(); });
}

[[nodiscard]] SKEIN_INLINE std::size_t before_rank(std::span<const std::size_t> counts, int rank) {
    std::size_t first = 0;
    for (int r = 0; r < rank; ++r) first += counts[static_cast<std::size_t>(r)];
    return first;
}

} // namespace detail

SKEIN_INLINE host_communicator::host_communicator(std::unique_ptr<communicator> inner,
                                                  std::function<cuda_runtime()> open,
                                                  collective_options limits, cuda_stream work)
    : inner_(std::move(inner)), open_(std::move(open)), work_(work), deadline_(limits.deadline) {}
SKEIN_INLINE host_communicator::~host_communicator() = default;

SKEIN_INLINE void host_communicator::set_deadline(time_span limit) {
    deadline_ = limit;
    inner_->set_deadline(limit);
}

/// The lane of the one device that they are on.
SKEIN_INLINE detail::pinned_lane& host_communicator::lane_of(std::span<const buffer_view> all) {
    const auto first =
        std::ranges::find_if(all, [](const buffer_view& v) { return !v.where.is_cpu(); });
    for (const auto& each : all)
        if (!each.where.is_cpu() && each.where != first->where)
            throw error(errc::not_supported,
                        fmt::format("not supported: a collective of buffers on {} and {}",
                                    to_string(first->where), to_string(each.where)))
                .with_hint("copy one of them to the other's device");
    if (!cuda_) cuda_.emplace(open_());
    const int device = first->where.index;
    const auto known =
        std::ranges::find_if(lanes_, [&](const auto& lane) { return lane->device() == device; });
    if (known != lanes_.end()) return **known;
    require_device(*cuda_, device);
    return *lanes_.emplace_back(std::make_unique<detail::pinned_lane>(*cuda_, device, work_));
}

/// With pinned memory for all of them. Where there is none, the others need not wait for this rank.
SKEIN_INLINE host_communicator::staging host_communicator::begin(std::span<const buffer_view> all,
                                                                 std::byte*& next) {
    try {
        staging what;
        what.lane = &lane_of(all);
        std::size_t bytes = 0;
        for (const auto& each : all) bytes += detail::pinned_bytes(each);
        next = what.lane->room(bytes);
        return what;
    } catch (const error& why) {
        inner_->abort(why);
        throw;
    }
}

SKEIN_INLINE buffer_view host_communicator::at(std::byte*& next, buffer_view of) noexcept {
    if (of.where.is_cpu()) return of;
    const buffer_view host{next, of.count, of.type, device::cpu()};
    next += detail::pinned_bytes(of);
    return host;
}

SKEIN_INLINE task<void> host_communicator::run(staging what, call inner) {
    const time_point now = loop::current().exact_now();
    const time_point until =
        deadline_ > time_point::max() - now ? time_point::max() : now + deadline_;
    std::optional<error> why;
    try {
        auto bringing = what.lane->bring(std::move(what.before), until);
        co_await std::move(bringing);
        auto work = inner();
        co_await std::move(work);
        if (!what.after.empty()) {
            auto taking = what.lane->take(std::move(what.after), until);
            co_await std::move(taking);
        }
    } catch (...) {
        why = to_error(std::current_exception());
    }
    if (!why) co_return;
    inner_->abort(*why); // the others wait for this rank, or go on without what it has lost
    const time_point then = loop::current().exact_now();
    const time_point limit =
        deadline_ > time_point::max() - then ? time_point::max() : then + deadline_;
    auto waiting = shield(what.lane->idle(limit)); // cancelled or not: the buffers are in use
    co_await std::move(waiting);
    throw *why;
}

SKEIN_INLINE task<void> host_communicator::all_reduce(buffer_view io, reduce_op op) {
    if (io.where.is_cpu()) return inner_->all_reduce(io, op);
    std::byte* next = nullptr;
    auto what = begin({&io, 1}, next);
    const auto host = at(next, io);
    what.before = what.after = {{io, host}};
    return run(std::move(what), [=, this] { return inner_->all_reduce(host, op); });
}

SKEIN_INLINE task<void> host_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op op) {
    const buffer_view all[] = {in, out};
    if (detail::on_host(all)) return inner_->reduce_scatter(in, out, op);
    std::byte* next = nullptr;
    auto what = begin(all, next);
    const auto from = at(next, in), to = at(next, out);
    what.before = {{in, from}};
    what.after = {{out, to}};
    return run(std::move(what), [=, this] { return inner_->reduce_scatter(from, to, op); });
}

SKEIN_INLINE task<void> host_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            reduce_op op) {
    if (io.where.is_cpu()) return inner_->reduce_scatter_v(io, counts, op);
    std::byte* next = nullptr;
    auto what = begin({&io, 1}, next);
    const auto host = at(next, io);
    what.before = {{io, host}};
    // Only the own part is promised. Counts that do not fit are refused by the other one.
    const auto mine = static_cast<std::size_t>(rank());
    const auto first = mine < counts.size() ? detail::before_rank(counts, rank()) : io.count;
    if (first < io.count && counts[mine] <= io.count - first)
        what.after = {{io.slice(first, counts[mine]), host.slice(first, counts[mine])}};
    return run(std::move(what), [=, this] { return inner_->reduce_scatter_v(host, counts, op); });
}

SKEIN_INLINE task<void> host_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            buffer_view out, reduce_op op) {
    const buffer_view all[] = {io, out};
    if (detail::on_host(all)) return inner_->reduce_scatter_v(io, counts, out, op);
    std::byte* next = nullptr;
    auto what = begin(all, next);
    const auto from = at(next, io), to = at(next, out);
    what.before = {{io, from}};
    what.after = {{out, to}};
    return run(std::move(what),
               [=, this] { return inner_->reduce_scatter_v(from, counts, to, op); });
}

/// Both gathers. What this rank brings may be its own slice of the result, and is then on the host,
/// too.
SKEIN_INLINE task<void> host_communicator::gather(
    buffer_view in, buffer_view out, std::optional<std::span<const std::size_t>> counts) {
    const buffer_view all[] = {in, out};
    std::byte* next = nullptr;
    auto what = begin(all, next);
    const auto to = at(next, out);
    const auto size = size_of(out.type);
    const bool is_slice = in.where == out.where && in.type == out.type &&
                          in.begin() >= out.begin() &&
                          in.begin() + in.bytes() <= out.begin() + out.bytes();
    const auto from =
        is_slice ? to.slice(static_cast<std::size_t>(in.begin() - out.begin()) / size, in.count)
                 : at(next, in);
    what.before = {{in, from}};
    what.after = {{out, to}};
    return run(std::move(what), [=, this] {
        return counts ? inner_->all_gather_v(from, to, *counts) : inner_->all_gather(from, to);
    });
}

SKEIN_INLINE task<void> host_communicator::all_gather(buffer_view in, buffer_view out) {
    const buffer_view all[] = {in, out};
    return detail::on_host(all) ? inner_->all_gather(in, out) : gather(in, out, {});
}

SKEIN_INLINE task<void> host_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    const buffer_view all[] = {in, out};
    return detail::on_host(all) ? inner_->all_gather_v(in, out, counts) : gather(in, out, counts);
}

SKEIN_INLINE task<void> host_communicator::broadcast(buffer_view io, int root) {
    if (io.where.is_cpu()) return inner_->broadcast(io, root);
    std::byte* next = nullptr;
    auto what = begin({&io, 1}, next);
    const auto host = at(next, io);
    (rank() == root ? what.before : what.after) = {{io, host}};
    return run(std::move(what), [=, this] { return inner_->broadcast(host, root); });
}

SKEIN_INLINE task<void> host_communicator::send(buffer_view io, int to) {
    if (io.where.is_cpu()) return inner_->send(io, to);
    std::byte* next = nullptr;
    auto what = begin({&io, 1}, next);
    const auto host = at(next, io);
    what.before = {{io, host}};
    return run(std::move(what), [=, this] { return inner_->send(host, to); });
}

SKEIN_INLINE task<void> host_communicator::recv(buffer_view io, int from) {
    if (io.where.is_cpu()) return inner_->recv(io, from);
    std::byte* next = nullptr;
    auto what = begin({&io, 1}, next);
    const auto host = at(next, io);
    what.after = {{io, host}};
    return run(std::move(what), [=, this] { return inner_->recv(host, from); });
}

} // namespace skein::dist

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of the two a call goes to, and their common end.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/dist/call_record.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE paired_communicator::paired_communicator(std::unique_ptr<communicator> devices,
                                                      std::unique_ptr<communicator> host)
    : devices_(std::move(devices)), host_(std::move(host)) {
    SKEIN_CHECK(devices_->rank() == host_->rank() && devices_->world_size() == host_->world_size(),
                "{} and {} are of other ranks", devices_->name(), host_->name());
    SKEIN_CHECK(!devices_->calls() || !host_->calls(),
                "neither {} nor {} compares calls, and there is one record", devices_->name(),
                host_->name());
}
SKEIN_INLINE paired_communicator::~paired_communicator() = default;

SKEIN_INLINE communicator& paired_communicator::carrier(
    std::initializer_list<buffer_view> all) const {
    const device first = all.begin()->where;
    for (const buffer_view& each : all)
        if (each.where.is_cpu() != first.is_cpu())
            throw error(errc::not_supported,
                        fmt::format("not supported: a collective of buffers on {} and {} over {}",
                                    to_string(first), to_string(each.where), name()))
                .with_hint("copy one of them to where the other is");
    return first.is_cpu() ? *host_ : *devices_;
}

/// What begins fails in both, or in none.
SKEIN_INLINE task<void> paired_communicator::run(communicator& on, task<void> work) {
    std::optional<error> why;
    try {
        co_await std::move(work);
    } catch (...) {
        why = to_error(std::current_exception());
    }
    if (!why) co_return;
    const auto code = why->code();
    if (&on == devices_.get() &&
        (code == errc::timeout || code == errc::peer_lost || code == errc::aborted)) {
        auto comparing = unlike();
        auto named = co_await std::move(comparing);
        if (named) why = std::move(named);
    }
    abort(*why);
    throw *why;
}

/// A deadline may have passed because the ranks called unlike things. They meet in the host's
/// communicator; a rank that is elsewhere fails there, and nothing is said.
SKEIN_INLINE task<std::optional<error>> paired_communicator::unlike() {
    const auto record = devices_->calls();
    if (!record || world_size() == 1) co_return std::nullopt;
    try {
        host_->set_tag({}); // those of the calls that hang are not the same
        const auto mine = record->last();
        const auto bytes = std::as_bytes(std::span(mine));
        const auto own = static_cast<std::int64_t>(bytes.size());
        std::vector<std::int64_t> sizes(static_cast<std::size_t>(world_size()));
        auto asking = host_->all_gather(view_of(std::span(&own, 1)), view_of(std::span(sizes)));
        co_await std::move(asking);
        const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
        std::size_t total = 0;
        for (const auto count : counts) total += count;
        std::vector<std::byte> all(total);
        auto telling = host_->all_gather_v(view_of(bytes), view_of(std::span(all)), counts);
        co_await std::move(telling);
        std::vector<std::vector<detail::signature>> by_rank;
        const std::byte* from = all.data();
        for (const auto count : counts) {
            auto& calls = by_rank.emplace_back(count / sizeof(detail::signature));
            if (!calls.empty())
                std::memcpy(calls.data(), from, calls.size() * sizeof(detail::signature));
            from += count;
        }
        auto why = unlike_calls(by_rank);
        if (why) why = std::move(*why).with_where("over " + record->name());
        co_return why;
    } catch (...) { // it stays what it is
    }
    co_return std::nullopt;
}

SKEIN_INLINE task<void> paired_communicator::all_reduce(buffer_view io, reduce_op op) {
    auto& on = carrier({io});
    return run(on, on.all_reduce(io, op));
}

SKEIN_INLINE task<void> paired_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                            reduce_op op) {
    auto& on = carrier({in, out});
    return run(on, on.reduce_scatter(in, out, op));
}

SKEIN_INLINE task<void> paired_communicator::reduce_scatter_v(buffer_view io,
                                                              std::span<const std::size_t> counts,
                                                              reduce_op op) {
    auto& on = carrier({io});
    return run(on, on.reduce_scatter_v(io, counts, op));
}

SKEIN_INLINE task<void> paired_communicator::reduce_scatter_v(buffer_view io,
                                                              std::span<const std::size_t> counts,
                                                              buffer_view out, reduce_op op) {
    auto& on = carrier({io, out});
    return run(on, on.reduce_scatter_v(io, counts, out, op));
}

SKEIN_INLINE task<void> paired_communicator::all_gather(buffer_view in, buffer_view out) {
    auto& on = carrier({in, out});
    return run(on, on.all_gather(in, out));
}

SKEIN_INLINE task<void> paired_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                          std::span<const std::size_t> counts) {
    auto& on = carrier({in, out});
    return run(on, on.all_gather_v(in, out, counts));
}

SKEIN_INLINE task<void> paired_communicator::broadcast(buffer_view io, int root) {
    auto& on = carrier({io});
    return run(on, on.broadcast(io, root));
}

SKEIN_INLINE task<void> paired_communicator::barrier() { return run(*host_, host_->barrier()); }

SKEIN_INLINE task<std::shared_ptr<group_memory>> paired_communicator::allocate(std::size_t bytes,
                                                                               memory_kind kind) {
    std::optional<error> why;
    try {
        auto work = host_->allocate(bytes, kind);
        auto made = co_await std::move(work);
        co_return made;
    } catch (...) {
        why = to_error(std::current_exception());
    }
    abort(*why);
    throw *why;
}

SKEIN_INLINE task<void> paired_communicator::send(buffer_view io, int to) {
    auto& on = carrier({io});
    return run(on, on.send(io, to));
}

SKEIN_INLINE task<void> paired_communicator::recv(buffer_view io, int from) {
    auto& on = carrier({io});
    return run(on, on.recv(io, from));
}

SKEIN_INLINE task<void> paired_communicator::close() {
    std::optional<error> why;
    try {
        auto first = devices_->close();
        co_await std::move(first);
    } catch (...) {
        why = to_error(std::current_exception());
    }
    auto last = host_->close();
    co_await std::move(last);
    if (why) throw *why;
}

SKEIN_INLINE void paired_communicator::abort(error why) noexcept {
    devices_->abort(why);
    host_->abort(std::move(why));
}

SKEIN_INLINE void paired_communicator::set_deadline(time_span limit) {
    devices_->set_deadline(limit);
    host_->set_deadline(limit);
}

SKEIN_INLINE void paired_communicator::set_tag(collective_tag tag) {
    devices_->set_tag(tag);
    host_->set_tag(tag);
}

SKEIN_INLINE std::shared_ptr<const call_record> paired_communicator::calls() const {
    auto of_devices = devices_->calls();
    return of_devices ? of_devices : host_->calls();
}

} // namespace skein::dist

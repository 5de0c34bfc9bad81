// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: items of calls that give many, docs/design/0049-streams.md.
//
// Items take the way of `started`, room that comes back that of `cancel`: from worker to worker
// over their link, or through the driver. The driver keeps nothing of them.

#include <skein/net/frame.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_streams.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/rt/detail/stream_call.hpp>
#include <skein/wire/reader.hpp>

#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE void runtime::streams::on_item(runtime& self, peer& from, const net::frame_view& f) {
    const counted_ptr<detail::call_base> call(self.call_at(from, slot_id(f.id)));
    if (!call) return; // of an older attempt, perhaps
    if (!is_stream(*call))
        throw detail::malformed(
            fmt::format("an item of {}, which gives none, from {}", call->name(), from.who));
    call->take_item(f);
    if (call->nested) return;
    auto due = static_cast<detail::stream_call&>(*call).end_that_is_due();
    if (!due) return;
    net::frame_view end;
    end.kind = detail::message_reply;
    end.flags = due->outcome;
    end.id = f.id;
    end.body = due->body;
    self.settle(from, self.free_slot(slot_id(f.id)), end);
}

SKEIN_INLINE void runtime::streams::on_taken(peer& from, const net::frame_view& f) {
    const auto found = from.forwarded.find(slot_id(f.id));
    if (found == from.forwarded.end())
        return detail::executor::items_were_taken(from, slot_id(f.id), f.body);
    auto& call = *found->second;
    if (!is_stream(call))
        throw detail::malformed(
            fmt::format("{} has taken items of {}, which gives none", from.who, call.name()));
    if (call.on == nullptr || !call.on->is_open() || call.state == detail::phase::queued) return;
    call.on->send(detail::message_taken, 0, call.slot.value(), f.body);
}

SKEIN_INLINE bool runtime::streams::open_end(peer& from, detail::call_base& call,
                                             net::frame_view& f, bool may_be_early) {
    const bool is_counted = (f.flags & detail::reply_counted) != 0;
    if (!is_stream(call)) {
        if (!is_counted) return true;
        throw detail::malformed(
            fmt::format("a reply that counts items of {}, from {}", call.name(), from.who));
    }
    if (f.flags == detail::reply_failed) return true; // it gave none
    wire::reader in(f.body);
    std::uint64_t count = 0;
    const bool is_end = (f.flags & ~(detail::reply_failed | detail::reply_counted)) == 0;
    if (!is_end || !in.fixed(count))
        throw detail::malformed(
            fmt::format("an end of {} that cannot be read from {}", call.name(), from.who));
    if (is_counted) {
        f.flags = detail::reply_failed;
        f.body = in.rest();
    }
    if (call.nested) return true;
    auto& items = static_cast<detail::stream_call&>(call);
    if (!may_be_early && !call.is_done() && items.came() != count)
        throw detail::malformed(fmt::format("{} ends behind {} items, and {} have come",
                                            call.name(), count, items.came()));
    return items.ends_behind(count, f.flags, f.body);
}

} // namespace skein::rt

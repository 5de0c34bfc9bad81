// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/stream_producer.hpp.

#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/net/frame.hpp>
#include <skein/rt/detail/call_context.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/inbound_calls.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/runtime.hpp>

#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

/// The call that runs, which its executor has entered.
[[nodiscard]] SKEIN_INLINE running_call& running_at(peer& from, slot_id id) {
    auto* const found = from.inbound.running.find(id);
    SKEIN_CHECK(found != nullptr, "a stream runs that nobody has called");
    return **found;
}

SKEIN_INLINE item_sender::item_sender(executor& by, std::shared_ptr<peer> to, slot_id id,
                                      stream_window window)
    : by_(by), to_(std::move(to)), id_(id), credit_(window), call_(running_at(*to_, id)) {
    call_.items = &credit_;
    began_ = loop::current().coarse_now();
}

SKEIN_INLINE item_sender::~item_sender() { call_.items = nullptr; }

SKEIN_INLINE void item_sender::encode(encoder item) {
    item_.clear();
    by_.answers().encode_item(item_, item);
    if (item_.size() <= limit::frame_bytes) return;
    throw error(errc::not_supported,
                fmt::format("not supported: an item of {} bytes in a stream; a message has {} at "
                            "most",
                            item_.size(), limit::frame_bytes))
        .with_hint("yield it in parts");
}

SKEIN_INLINE task<void> item_sender::room() {
    auto* const home = by_.home();
    auto& context = *call_.context;
    const bool holds_cores = home != nullptr && !home->is_driver() && !context.actor;
    struct waiting {
        direct_state* at;
        call_context& of;
        ~waiting() {
            if (at != nullptr) at->end_to_wait(of);
        }
    } const until_it_goes_on{holds_cores ? &direct_state::of(*home) : nullptr, context};
    if (holds_cores) until_it_goes_on.at->begin_to_wait(context);
    co_await credit_.given();
    began_ = loop::current().coarse_now();
}

SKEIN_INLINE void item_sender::send() {
    if (call_.stop.requested()) throw cancelled_error();
    const auto size = item_.size();
    credit_.sent(size);
    if (!to_->is_open()) return; // its end is near
    if (size < limit::inline_bytes) return to_->send(message_item, 0, id_.value(), item_.bytes());
    net::frame f;
    f.kind = message_item;
    f.id = id_.value();
    f.body = std::move(item_).take();
    to_->send(std::move(f));
}

SKEIN_INLINE bool item_sender::ran_for_long() {
    constexpr std::uint32_t looks_each = 16;
    if (++since_look_ % looks_each != 0) return false;
    return loop::current().coarse_now() - began_ >= limit::call_turn;
}

SKEIN_INLINE task<void> item_sender::pause() {
    next_turn next;
    co_await next;
    co_await yield(); // behind the readers that this turn has woken
    began_ = loop::current().coarse_now();
}

SKEIN_INLINE void item_sender::reply(const std::exception_ptr& why, const function_record& fn) {
    by_.answers().reply_end(*to_, id_, credit_.count(), why, fn);
}

} // namespace skein::rt::detail

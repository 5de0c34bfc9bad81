// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/stream_call.hpp.

#include <skein/core/check.hpp>
#include <skein/net/frame.hpp>
#include <skein/rt/detail/call_rarities.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <memory>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void refuse_window(call_base& call, const stream_window& window) {
    call.extra().bad_options =
        error(errc::invalid_argument,
              fmt::format("its window is of {} items and {} bytes, so that none could ever be sent",
                          window.items, window.bytes))
            .with_hint("at least one of each: .with({.items = 8}) leaves the bytes as they are");
}

SKEIN_INLINE void stream_call::check_alone() const {
    SKEIN_CHECK(const_cast<stream_call*>(this)->waiters.empty(),
                "an item of {} is asked for while somebody waits for one", name());
}

SKEIN_INLINE std::optional<byte_buffer> stream_call::item_waiter::await_resume() {
    if (item_) return std::move(item_); // also to a task that was cancelled meanwhile
    if (!of_.items_.empty()) {
        auto first = std::move(of_.items_.front());
        of_.items_.pop_front();
        of_.was_taken(first.size());
        return first;
    }
    if (!of_.is_done()) throw_if_cancelled();
    if (of_.failed()) of_.why().raise();
    return {};
}

/// Whoever gives items hears so, now and then.
SKEIN_INLINE void stream_call::was_taken(std::size_t bytes) {
    is_spent = true;
    ++taken_;
    items_taken due;
    if (!debt_.taken(bytes, due) || owner == nullptr) return;
    if (on == nullptr || !on->is_open() || state == phase::queued) return;
    wire::writer told;
    due.encode(told);
    on->send(message_taken, 0, slot.value(), told.bytes());
}

SKEIN_INLINE void stream_call::leave() noexcept {
    is_left_ = true;
    items_.clear();
    cancel_call(*this, false);
}

SKEIN_INLINE void stream_call::take_item(const net::frame_view& f) {
    if (is_done()) { // by its deadline; its producer hears of that
        ++came_;
        return;
    }
    if (!debt_.came(f.body.size()))
        throw malformed(fmt::format("an item of {} beyond its window of {} items and {} bytes",
                                    name(), debt_.most().items, debt_.most().bytes));
    ++came_;
    if (is_left_) return;
    if (waiters.empty()) return items_.push_back(f.take_body());
    auto& first = static_cast<item_waiter&>(waiters.front());
    first.item_ = f.take_body();
    first.wake();
    was_taken(first.item_->size());
}

SKEIN_INLINE void stream_call::begin_again() {
    debt_.begin_again();
    items_.clear();
    came_ = 0;
    early_.reset();
}

SKEIN_INLINE bool stream_call::ends_behind(std::uint64_t count, std::uint16_t outcome,
                                           byte_span rest) {
    if (count == came_ || is_done()) return true;
    if (count < came_ || early_)
        throw malformed(
            fmt::format("{} ends behind {} items, and {} have come", name(), count, came_));
    early_ = std::make_unique<early_end>(early_end{count, outcome, to_buffer(rest)});
    return false;
}

SKEIN_INLINE std::optional<stream_call::early_end> stream_call::end_that_is_due() {
    if (!early_ || early_->count != came_) return {};
    std::optional<early_end> due(std::move(*early_));
    early_.reset();
    return due;
}

/// How many items there were: known already.
SKEIN_INLINE result<void> stream_call::take_value(byte_span bytes) {
    wire::reader in(bytes);
    std::uint64_t count = 0;
    if (!in.fixed(count) || !in.finish()) return in.status();
    return {};
}

} // namespace skein::rt::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/backlog.hpp.

#include <skein/core/constants.hpp>
#include <skein/rt/detail/peer.hpp>

#include <utility>

namespace skein::rt::detail {

SKEIN_INLINE void backlog::push(arrival one) {
    peer& from = *one.from;
    bytes_ += one.body.size();
    waiting_.push_back(std::move(one));
    is_full_ = is_full_ || bytes_ > limit::backlog_bytes;
    if (is_full_ && from.wire && from.wants_values.empty() &&
        !std::exchange(from.inbound.is_paused, true))
        from.wire->pause_reading();
}

SKEIN_INLINE arrival backlog::take() {
    auto one = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_ -= one.body.size();
    return one;
}

SKEIN_INLINE void backlog::read_on(const std::vector<peer*>& callers) {
    if (bytes_ >= limit::backlog_bytes / 2 || !std::exchange(is_full_, false)) return;
    for (auto* const one : callers)
        if (std::exchange(one->inbound.is_paused, false)) one->wire->resume_reading();
}

SKEIN_INLINE void backlog::close(const std::vector<peer*>& callers) {
    is_open_ = false;
    for (auto* const one : callers) one->inbound.cancelled.clear();
}

SKEIN_INLINE void backlog::cancel(peer& caller, slot_id id) {
    if (is_open_) caller.inbound.cancelled.insert(id);
}

SKEIN_INLINE bool backlog::was_cancelled(const arrival& one) {
    return one.from->inbound.cancelled.erase(one.slot) != 0;
}

SKEIN_INLINE void backlog::drop(const peer& caller) {
    std::erase_if(waiting_, [&](const arrival& one) {
        if (one.from.get() != &caller) return false;
        bytes_ -= one.body.size();
        return true;
    });
}

} // namespace skein::rt::detail

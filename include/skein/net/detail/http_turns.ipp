// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whose turn it is.

#include <skein/core/one_more.hpp>

#include <utility>

namespace skein::net {

SKEIN_INLINE http_turns::end_of_turn::end_of_turn(http_turns& t) noexcept
    : turn_hook([](turn_hook& h) { static_cast<end_of_turn&>(h).of.ended(); }), of(t) {}
SKEIN_INLINE http_turns::end_of_rest::end_of_rest(http_turns& t) noexcept
    : timer_node([](timer_node& n) {
          auto& self = static_cast<end_of_rest&>(n).of;
          self.resting_ = false;
          self.next();
      }),
      of(t) {}

SKEIN_INLINE http_turns::http_turns(time_span budget) : budget_(budget) {}

SKEIN_INLINE task<void> http_turns::wait(std::size_t lane) {
    if (!working_ && !resting_) {
        begin();
        co_return;
    }
    const one_more here(waiting_[lane]);
    auto turn = queues_[lane].wait();
    co_await turn;
}

SKEIN_INLINE void http_turns::begin() noexcept {
    working_ = true;
    began_ = loop::current().exact_now();
    loop::current().at_turn_end(hook_);
}

/// What ran beside the piece counts as well: a busy loop does less of this.
SKEIN_INLINE void http_turns::ended() noexcept {
    const auto now = loop::current().exact_now();
    working_ = false;
    used_ += now - began_;
    if (used_ < budget_) return next();
    resting_ = true;
    loop::current().set_timer(rest_, deadline_after(now, std::exchange(used_, duration(0))));
}

SKEIN_INLINE void http_turns::next() noexcept {
    for (std::size_t i = 1; i <= lanes; ++i) {
        const auto lane = (last_lane_ + i) % lanes;
        if (!queues_[lane].wake_one()) continue;
        last_lane_ = lane;
        return begin(); // it runs in the next turn, at whose end this is asked again
    }
    used_ = duration(0);
}

} // namespace skein::net

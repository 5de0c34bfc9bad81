// SPDX-License-Identifier: Apache-2.0
#pragma once
// Listeners run under the lock: that is what makes the end of a subscription final. The lock is
// recursive, so that a listener may end its own.

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace skein::spmd {

struct loss_listeners::state {
    std::recursive_mutex mutex; // guards all
    std::condition_variable_any told;
    std::vector<std::shared_ptr<listener>> listeners;
    std::optional<std::pair<int, error>> lost;

    void remove(const std::shared_ptr<listener>& which) {
        const std::lock_guard lock(mutex);
        std::erase(listeners, which);
    }
};

SKEIN_INLINE loss_listeners::loss_listeners() : state_(std::make_shared<state>()) {}

SKEIN_INLINE subscription loss_listeners::add(listener told) {
    auto added = std::make_shared<listener>(std::move(told));
    const std::lock_guard lock(state_->mutex);
    if (state_->lost) {
        (*added)(state_->lost->first, state_->lost->second);
        return {};
    }
    state_->listeners.push_back(added);
    return subscription([of = state_, added] { of->remove(added); });
}

SKEIN_INLINE void loss_listeners::tell(int rank, const error& why) {
    const std::lock_guard lock(state_->mutex);
    if (state_->lost) return;
    state_->lost.emplace(rank, why);
    state_->told.notify_all();
    const auto all = state_->listeners; // a listener may end its own or another subscription
    for (const auto& each : all) {
        const bool here = std::find(state_->listeners.begin(), state_->listeners.end(), each) !=
                          state_->listeners.end();
        if (here) (*each)(rank, why);
    }
}

SKEIN_INLINE bool loss_listeners::wait(time_span limit) {
    std::unique_lock lock(state_->mutex);
    constexpr duration far = std::chrono::hours(24 * 365); // a clock counts no end of time
    return state_->told.wait_for(lock, std::min<duration>(limit, far),
                                 [&] { return state_->lost.has_value(); });
}

} // namespace skein::spmd

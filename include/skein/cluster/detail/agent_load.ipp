// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: how busy the host is.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/load_messages.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/offload.hpp>
#include <skein/proc/host_load.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace skein::cluster {

namespace detail {

/// As many as one message has.
[[nodiscard]] inline std::vector<metric_family> some_of(const metric_registry& all) {
    auto out = all.collect();
    std::size_t left = most_told_series;
    for (auto& one : out) {
        one.help.clear(); // the head has its own words
        one.series.resize(std::min(one.series.size(), left));
        left -= one.series.size();
    }
    return out;
}

} // namespace detail

/// Once a second. The first look is where shares and rates begin.
SKEIN_INLINE task<void> agent::state::tell_load(state* self) {
    const auto watch = self->how.watch;
    if (watch == nullptr) co_return;
    for (bool is_first = true;; is_first = false) {
        auto looking =
            net::offload([watch, now = self->on_loop.now()] { return watch->sample(now); });
        node_load said;
        said.load = co_await looking;
        if (self->how.numbers != nullptr) said.numbers = detail::some_of(*self->how.numbers);
        if (!is_first) self->head.tell(std::move(said)); // without a link nobody hears it
        co_await sleep_for(std::chrono::seconds(1));
    }
}

} // namespace skein::cluster

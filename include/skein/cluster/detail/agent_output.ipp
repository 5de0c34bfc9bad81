// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: what workers print, on its way to their drivers. A
// worker never waits for it: its pipes are read as fast as it writes, and what the head does not
// ask for in time is left out.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace skein::cluster {

SKEIN_INLINE task<void> agent::state::read_output(state* self, worker* w, proc::child* process) {
    const auto driver = w->order.lease.driver;
    auto reading =
        proc::read_lines(process, &w->said, [self, driver] { self->offer_output(driver); });
    co_await reading;
}

/// The lines of that worker, if it has any.
SKEIN_INLINE proc::line_queue* agent::state::has_said(std::uint64_t driver,
                                                      std::uint64_t lease) const {
    const auto found = workers.find({driver, lease});
    return found == workers.end() || found->second->said.empty() ? nullptr : &found->second->said;
}

/// Tells the head, unless it knows.
SKEIN_INLINE void agent::state::offer_output(std::uint64_t driver) {
    auto& output = outputs[driver];
    if (output.is_told) return;
    const bool any =
        std::any_of(workers.lower_bound({driver, 0}), workers.upper_bound({driver, UINT64_MAX}),
                    [](const auto& one) { return !one.second->said.empty(); });
    if (any) output.is_told = head.tell(output_waits{driver});
}

/// To a head that has just welcomed this node.
SKEIN_INLINE void agent::state::offer_all_output() {
    for (auto& [name, w] : workers) { // a head that has them leaves them out
        const auto sent = std::exchange(w->sent, {});
        if (!sent.lines.empty()) w->said.put_back(sent.first, sent.lines);
    }
    for (auto& [driver, output] : outputs) {
        output.is_told = false;
        offer_output(driver);
    }
}

SKEIN_INLINE void agent::state::send_output(std::uint64_t driver) {
    node_output m;
    m.driver = driver;
    auto& output = outputs[driver];
    std::vector<std::pair<std::uint64_t, worker*>> all;
    for (auto at = workers.lower_bound({driver, 0});
         at != workers.end() && at->first.driver == driver; ++at)
        if (!at->second->said.empty()) all.emplace_back(at->first.number, at->second.get());
    // Those behind the one that was served last come first.
    const auto next = std::find_if(all.begin(), all.end(),
                                   [&](const auto& one) { return one.first > output.last_from; });
    std::rotate(all.begin(), next, all.end());
    std::size_t left = most_output_bytes;
    for (const auto& [lease, w] : all) {
        if (left < proc::line_queue::most_line + 2 * proc::line_queue::line_cost) break;
        printed_lines some;
        some.lease = lease;
        some.first = w->said.next();
        some.lines = w->said.take(left - proc::line_queue::line_cost);
        if (w->order.entry() != nullptr)
            w->sent = some; // the head has the ones before: it asks for more
        left -= std::min(left, proc::line_queue::line_cost);
        for (const auto& line : some.lines)
            left -= std::min(left, line.text.size() + proc::line_queue::line_cost);
        m.from.push_back(std::move(some));
        output.last_from = lease;
        if (w->said.empty()) w->all_sent.set();
    }
    output.is_told = false;
    if (head.tell(std::move(m))) offer_output(driver);
}

/// What a worker said last is worth a moment: its driver prints it before it hears of the end. What
/// a job said last is worth more: the head keeps it, and one that is away may come back.
SKEIN_INLINE task<void> agent::state::send_last_words(state* self, worker* w) {
    const bool is_kept = w->order.entry() != nullptr;
    const auto begin = self->on_loop.now();
    const auto moment = duration(self->how.times.suspect_after) / 2;
    const auto until = deadline_after(begin, is_kept ? self->patience() : moment);
    const auto is_on_its_way = [&] { // with a link that is no more
        return !w->sent.lines.empty() && !self->head.is_joined();
    };
    while ((!w->said.empty() || is_on_its_way()) && !self->leaving &&
           (is_kept || self->head.is_joined())) {
        const auto now = self->on_loop.now();
        const bool is_hurried = self->stopping.is_set() || w->asked_to_stop;
        if (now >= until || (is_hurried && now >= deadline_after(begin, moment))) co_return;
        w->all_sent.reset();
        auto sent = detail::wait_at_most(&w->all_sent, std::min(until - now, moment));
        co_await sent;
    }
}

/// When the last worker of a driver has gone.
SKEIN_INLINE void agent::state::forget_output(std::uint64_t driver) {
    const auto first = workers.lower_bound({driver, 0});
    if (first == workers.end() || first->first.driver != driver) outputs.erase(driver);
}

} // namespace skein::cluster

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/sent_output.hpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

SKEIN_INLINE printed_output& sent_output::add(const lease_name& lease, bool is_kept) {
    auto& out = printed_[lease];
    out.is_kept = is_kept;
    return out;
}

SKEIN_INLINE void sent_output::remove(const lease_name& lease) {
    printed_.erase(lease);
    const auto first = printed_.lower_bound({lease.driver, 0});
    if (first == printed_.end() || first->first.driver != lease.driver)
        drivers_.erase(lease.driver);
}

SKEIN_INLINE task<void> sent_output::read_lines_of(sent_output* self, lease_name lease,
                                                   proc::child* process) {
    auto reading = proc::read_lines(process, &self->printed_.at(lease).said,
                                    [self, driver = lease.driver] { self->offer(driver); });
    co_await reading;
}

/// Tells the head, unless it knows.
SKEIN_INLINE void sent_output::offer(std::uint64_t driver) {
    auto& output = drivers_[driver];
    if (output.is_told) return;
    const bool any =
        std::any_of(printed_.lower_bound({driver, 0}), printed_.upper_bound({driver, UINT64_MAX}),
                    [](const auto& one) { return !one.second.said.empty(); });
    if (any) output.is_told = way_.offer_lines(driver);
}

SKEIN_INLINE void sent_output::offer_all() {
    for (auto& [lease, one] : printed_) { // a head that has them leaves them out
        const auto sent = std::exchange(one.sent, {});
        if (!sent.lines.empty()) one.said.put_back(sent.first, sent.lines);
    }
    for (auto& [driver, output] : drivers_) {
        output.is_told = false;
        offer(driver);
    }
}

SKEIN_INLINE void sent_output::send(std::uint64_t driver) {
    node_output m;
    m.driver = driver;
    auto& output = drivers_[driver];
    std::vector<std::pair<std::uint64_t, printed_output*>> all;
    for (auto at = printed_.lower_bound({driver, 0});
         at != printed_.end() && at->first.driver == driver; ++at)
        if (!at->second.said.empty()) all.emplace_back(at->first.number, &at->second);
    // Those behind the one that was served last come first.
    const auto next = std::find_if(all.begin(), all.end(),
                                   [&](const auto& one) { return one.first > output.last_from; });
    std::rotate(all.begin(), next, all.end());
    std::size_t left = most_output_bytes;
    for (const auto& [lease, one] : all) {
        if (left < proc::line_queue::most_line + 2 * proc::line_queue::line_cost) break;
        printed_lines some;
        some.lease = lease;
        some.first = one->said.next();
        some.lines = one->said.take(left - proc::line_queue::line_cost);
        if (one->is_kept) one->sent = some;
        left -= std::min(left, proc::line_queue::line_cost);
        for (const auto& line : some.lines)
            left -= std::min(left, line.text.size() + proc::line_queue::line_cost);
        m.from.push_back(std::move(some));
        output.last_from = lease;
        if (one->said.empty()) one->all_sent.set();
    }
    output.is_told = false;
    if (way_.send_lines(std::move(m))) offer(driver);
}

} // namespace skein::cluster::detail

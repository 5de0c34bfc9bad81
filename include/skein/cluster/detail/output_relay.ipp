// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/output_relay.hpp.

#include <algorithm>
#include <utility>

namespace skein::cluster::detail {

SKEIN_INLINE std::size_t output_bytes(const std::vector<printed_lines>& lines) noexcept {
    std::size_t bytes = 0;
    for (const auto& some : lines) {
        bytes += proc::line_queue::line_cost;
        for (const auto& line : some.lines) bytes += line.text.size() + proc::line_queue::line_cost;
    }
    return bytes;
}

SKEIN_INLINE void output_relay::waits(std::uint64_t driver, std::uint64_t node) {
    auto& nodes = by_driver_[driver];
    const auto under_way = nodes.out.find(node);
    if (under_way != nodes.out.end()) {
        under_way->second.has_more = true;
    } else if (std::find(nodes.waiting.begin(), nodes.waiting.end(), node) == nodes.waiting.end()) {
        nodes.waiting.push_back(node);
    }
    ask(driver, nodes);
}

SKEIN_INLINE void output_relay::ask(std::uint64_t driver) {
    const auto found = by_driver_.find(driver);
    if (found != by_driver_.end()) ask(driver, found->second);
}

SKEIN_INLINE void output_relay::ask(std::uint64_t driver, line_of_nodes& nodes) {
    while (!nodes.waiting.empty() && nodes.out.size() < most_asked &&
           readers_.reader_of(driver) != output_reader::none) {
        const auto node = nodes.waiting.front();
        nodes.waiting.pop_front();
        if (readers_.ask_for_lines(node, driver)) nodes.out[node] = {};
    }
}

SKEIN_INLINE void output_relay::arrived(std::uint64_t driver, std::uint64_t node,
                                        std::vector<printed_lines> lines) {
    const auto found = by_driver_.find(driver);
    if (found == by_driver_.end()) return;
    auto& nodes = found->second;
    const auto from = nodes.out.find(node);
    if (from == nodes.out.end() || from->second.is_forwarded) return; // nobody has asked
    const auto reader = readers_.reader_of(driver);
    if (reader == output_reader::driver && !lines.empty()) {
        from->second.is_forwarded = true;
        return readers_.send_lines(driver, node, std::move(lines));
    }
    if (reader == output_reader::head) readers_.keep_lines_of(driver, std::move(lines));
    printed(driver, node, nodes);
}

SKEIN_INLINE void output_relay::printed(std::uint64_t driver, std::uint64_t node) {
    const auto found = by_driver_.find(driver);
    if (found != by_driver_.end()) printed(driver, node, found->second);
}

SKEIN_INLINE void output_relay::printed(std::uint64_t driver, std::uint64_t node,
                                        line_of_nodes& nodes) {
    const auto from = nodes.out.find(node);
    if (from == nodes.out.end()) return; // before its link was lost
    if (from->second.has_more) nodes.waiting.push_back(node);
    nodes.out.erase(from);
    ask(driver, nodes);
}

SKEIN_INLINE void output_relay::forget_node(std::uint64_t node) {
    for (auto& [driver, nodes] : by_driver_) {
        std::erase(nodes.waiting, node);
        if (nodes.out.erase(node) != 0) ask(driver, nodes);
    }
}

SKEIN_INLINE void output_relay::link_ended(std::uint64_t driver) {
    const auto found = by_driver_.find(driver);
    if (found == by_driver_.end()) return;
    auto& nodes = found->second;
    for (const auto& [node, from] : nodes.out)
        if (from.is_forwarded && from.has_more) nodes.waiting.push_back(node);
    std::erase_if(nodes.out, [](const auto& one) { return one.second.is_forwarded; });
}

} // namespace skein::cluster::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/node_loads.hpp.

#include <skein/core/error.hpp>
#include <skein/core/printable.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE std::vector<metric_family> checked_numbers(std::vector<metric_family> told) {
    std::vector<metric_family> out;
    std::size_t left = most_told_series;
    for (auto& one : told) {
        if (!is_metric_name(one.name) || one.kind > series_kind::histogram ||
            one.bounds.size() > metric_histogram::most_bounds)
            continue;
        std::erase_if(one.series, [&](const metric_series& s) {
            const bool is_histogram = one.kind == series_kind::histogram;
            return s.labels.size() > 8 ||
                   s.counts.size() != (is_histogram ? one.bounds.size() + 1 : 0) ||
                   !std::all_of(s.labels.begin(), s.labels.end(), [](const metric_label& l) {
                       return is_label_name(l.name) && l.name != "node" && l.name != "process" &&
                              l.value.size() <= 256;
                   });
        });
        one.series.resize(std::min(one.series.size(), left));
        left -= one.series.size();
        one.help.clear();
        if (!one.series.empty()) out.push_back(std::move(one));
    }
    return out;
}

SKEIN_INLINE void node_loads::told(const std::string& node, const node_load& said,
                                   std::int64_t unix_s) {
    if (!by_name_.contains(node)) make_room(unix_s);
    if (!by_name_.contains(node) && by_name_.size() >= most_nodes) return;
    auto& known = by_name_[node];
    known.last = said.load;
    known.numbers = checked_numbers(said.numbers);
    known.history.add(said.load, unix_s);
    known.number = ++changes_;
}

/// Nodes that are gone are forgotten when their last day is over, or when there are too many: who
/// has been gone for longest first.
SKEIN_INLINE void node_loads::make_room(std::int64_t unix_s) {
    std::erase_if(by_name_, [&](const auto& one) {
        return one.second.history.last() < unix_s - std::int64_t{24} * 3600 &&
               !there_.contains(one.first);
    });
    if (by_name_.size() < most_nodes) return;
    auto oldest = by_name_.end();
    for (auto one = by_name_.begin(); one != by_name_.end(); ++one)
        if (!there_.contains(one->first) &&
            (oldest == by_name_.end() ||
             one->second.history.last() < oldest->second.history.last()))
            oldest = one;
    if (oldest != by_name_.end()) by_name_.erase(oldest);
}

SKEIN_INLINE std::map<std::string, node_usage> node_loads::usage() const {
    std::map<std::string, node_usage> out;
    for (const auto& [name, known] : by_name_)
        out.emplace(name, node_usage{known.last, known.history.last(), known.number,
                                     there_.contains(name)});
    return out;
}

SKEIN_INLINE load_curve node_loads::since(const std::string& node, std::int64_t unix_s,
                                          std::size_t most) const {
    const auto found = by_name_.find(node);
    if (found == by_name_.end())
        throw error(errc::not_found,
                    fmt::format("no node \"{}\" has told how busy it is", printable(node)))
            .with_hint("skein status lists the nodes; they tell it once a second");
    return found->second.history.since(unix_s, most);
}

SKEIN_INLINE std::map<std::string, std::vector<metric_family>> node_loads::numbers() const {
    std::map<std::string, std::vector<metric_family>> out;
    for (const auto& name : there_)
        if (const auto found = by_name_.find(name); found != by_name_.end())
            out.emplace(name, found->second.numbers);
    return out;
}

} // namespace skein::cluster::detail

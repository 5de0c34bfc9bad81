// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/metrics.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/fnv.hpp>

#include <algorithm>
#include <limits>

#include <fmt/core.h>

namespace skein::report {

namespace detail {

// A NaN, once in, stays: a broken number must not be hidden by a later good one.
SKEIN_INLINE double keep_nan(double old, double value, bool better) noexcept {
    return old != old ? old : (better || value != value ? value : old);
}
SKEIN_INLINE double finish_metric(metric_kind kind, double value, double weight) noexcept {
    if (kind != metric_kind::mean) return value;
    return weight == 0.0 ? std::numeric_limits<double>::quiet_NaN() : value / weight;
}

} // namespace detail

SKEIN_INLINE metric_set& metric_set::mean(std::string_view name, double value, double weight) {
    auto& m = slot(name, metric_kind::mean);
    m.value += value * weight;
    m.weight += weight;
    return *this;
}
SKEIN_INLINE metric_set& metric_set::sum(std::string_view name, double value) {
    slot(name, metric_kind::sum).value += value;
    return *this;
}
SKEIN_INLINE metric_set& metric_set::max(std::string_view name, double value) {
    auto& m = slot(name, metric_kind::max);
    m.value = detail::keep_nan(m.value, value, m.value < value);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::min(std::string_view name, double value) {
    auto& m = slot(name, metric_kind::min);
    m.value = detail::keep_nan(m.value, value, m.value > value);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::last(std::string_view name, double value) {
    slot(name, metric_kind::last).value = value;
    return *this;
}

SKEIN_INLINE metric_set& metric_set::add(metric_kind kind, std::string_view name, double value,
                                         double weight) {
    switch (kind) {
    case metric_kind::mean: return mean(name, value, weight);
    case metric_kind::sum: return sum(name, value);
    case metric_kind::max: return max(name, value);
    case metric_kind::min: return min(name, value);
    case metric_kind::last: return last(name, value);
    }
    return *this;
}

SKEIN_INLINE metric_set& metric_set::append(const metric_set& others) {
    for (const auto& m : others.slots_) {
        auto& mine = slot(m.name, m.kind);
        mine.value = m.value;
        mine.weight = m.weight;
    }
    return *this;
}

SKEIN_INLINE std::string metric_set::layout() const {
    std::string out;
    for (const auto& m : slots_) {
        out += static_cast<char>('0' + static_cast<int>(m.kind));
        out.append(m.name) += '\0';
    }
    return out;
}

SKEIN_INLINE metric_set metric_set::with_layout(std::string_view layout) {
    metric_set out;
    while (!layout.empty()) {
        const auto end = std::min(layout.find('\0'), layout.size());
        const auto kind = std::clamp(layout[0] - '0', 0, static_cast<int>(metric_kind::last));
        out.slot(layout.substr(1, end - 1), static_cast<metric_kind>(kind));
        layout.remove_prefix(std::min(end + 1, layout.size()));
    }
    return out;
}

SKEIN_INLINE std::vector<metric_value> metric_set::values() const {
    std::vector<metric_value> out;
    out.reserve(slots_.size());
    for (auto& m : slots_)
        out.push_back({m.name, detail::finish_metric(m.kind, m.value, m.weight)});
    return out;
}

SKEIN_INLINE std::uint64_t metric_set::layout_hash() const noexcept {
    fnv1a h;
    for (auto& m : slots_) {
        h.text(m.name);
        h.byte(0);
        h.byte(static_cast<std::uint8_t>(m.kind));
    }
    return h.value();
}

SKEIN_INLINE packed_metrics metric_set::pack(int rank) const {
    packed_metrics p;
    const auto h = layout_hash();
    const auto low = static_cast<double>(h & 0xffffffffULL);
    const auto high = static_cast<double>(h >> 32);
    p.maxima = {low, high, -low, -high};
    for (auto& m : slots_) {
        switch (m.kind) {
        case metric_kind::mean:
            p.sums.push_back(m.value);
            p.sums.push_back(m.weight);
            break;
        case metric_kind::sum: p.sums.push_back(m.value); break;
        case metric_kind::last: p.sums.push_back(rank == 0 ? m.value : 0.0); break;
        case metric_kind::max: p.maxima.push_back(m.value); break;
        case metric_kind::min: p.maxima.push_back(-m.value); break;
        }
    }
    for (auto* part : {&p.sums, &p.maxima})
        part->resize((part->size() + pack_unit - 1) / pack_unit * pack_unit, 0.0);
    return p;
}

SKEIN_INLINE result<std::vector<metric_value>> metric_set::unpack(
    const packed_metrics& merged) const {
    const auto mine = pack(0);
    if (merged.sums.size() != mine.sums.size() || merged.maxima.size() != mine.maxima.size())
        return error(errc::mismatch, "merged metrics have another length than this rank's");
    if (merged.maxima[0] != -merged.maxima[2] || merged.maxima[1] != -merged.maxima[3])
        return error(errc::mismatch,
                     fmt::format("the ranks reported different metrics; this rank: {}", names()))
            .with_hint("call report() with the same names in the same order on every rank");
    std::vector<metric_value> out;
    out.reserve(slots_.size());
    std::size_t s = 0, x = 4;
    for (auto& m : slots_) {
        const bool in_sums = m.kind != metric_kind::max && m.kind != metric_kind::min;
        const double value = in_sums ? merged.sums[s++] : merged.maxima[x++];
        const double weight = m.kind == metric_kind::mean ? merged.sums[s++] : 1.0;
        out.push_back({m.name, detail::finish_metric(
                                   m.kind, m.kind == metric_kind::min ? -value : value, weight)});
    }
    return out;
}

SKEIN_INLINE std::string metric_set::names() const {
    std::string out;
    for (auto& m : slots_)
        out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", m.name, to_string(m.kind));
    return out;
}

SKEIN_INLINE metric_set::slot_type& metric_set::slot(std::string_view name, metric_kind kind) {
    for (auto& m : slots_) {
        if (m.name != name) continue;
        SKEIN_CHECK(m.kind == kind, "metric '{}' was reported as {} and as {}", name,
                    to_string(m.kind), to_string(kind));
        return m;
    }
    if (std::find(taken_.begin(), taken_.end(), name) != taken_.end())
        throw error(errc::usage, fmt::format("the metric name '{}' is taken by the trainer", name))
            .with_hint("report it under another name");
    const double infinity = std::numeric_limits<double>::infinity();
    const double start = kind == metric_kind::max   ? -infinity
                         : kind == metric_kind::min ? infinity
                                                    : 0.0;
    slots_.push_back({std::string(name), kind, start, 0.0});
    return slots_.back();
}

SKEIN_INLINE const double* find_metric(const std::vector<metric_value>& values,
                                       std::string_view name) noexcept {
    auto it = std::find_if(values.begin(), values.end(), [&](auto& v) { return v.name == name; });
    return it == values.end() ? nullptr : &it->value;
}

} // namespace skein::report

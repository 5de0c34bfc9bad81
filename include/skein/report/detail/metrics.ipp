// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/metrics.hpp>.

#include <skein/core/fnv.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/printable.hpp>

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
// Who reported a name travels as most_ranks - rank, so that the largest number is the lowest rank.
inline constexpr double most_ranks = 1u << 30;

} // namespace detail

SKEIN_INLINE metric_set& metric_set::mean(std::string_view name, double value,
                                          std::optional<double> weight) {
    auto& m = reported(name, metric_kind::mean);
    m.value += value * weight.value_or(each_);
    m.weight += weight.value_or(each_);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::sum(std::string_view name, double value) {
    reported(name, metric_kind::sum).value += value;
    return *this;
}
SKEIN_INLINE metric_set& metric_set::max(std::string_view name, double value) {
    auto& m = reported(name, metric_kind::max);
    m.value = detail::keep_nan(m.value, value, m.value < value);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::min(std::string_view name, double value) {
    auto& m = reported(name, metric_kind::min);
    m.value = detail::keep_nan(m.value, value, m.value > value);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::last(std::string_view name, double value) {
    reported(name, metric_kind::last).value = value;
    return *this;
}

SKEIN_INLINE metric_set& metric_set::add(metric_kind kind, std::string_view name, double value,
                                         std::optional<double> weight) {
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
        mine.used = m.used;
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

SKEIN_INLINE metric_set& metric_set::know(const metric_set& others) {
    for (const auto& m : others.slots_)
        if (find(m.name) == nullptr) slot(m.name, m.kind);
    return *this;
}

SKEIN_INLINE bool metric_set::covers(const metric_set& other) const noexcept {
    return std::ranges::all_of(other.slots_, [&](const slot_type& theirs) {
        const auto* const mine = find(theirs.name);
        return mine != nullptr && mine->kind == theirs.kind;
    });
}

SKEIN_INLINE result<metric_set> metric_set::join(std::span<const std::string> layouts) {
    metric_set out;
    std::vector<std::size_t> first; // the rank that each name comes from
    for (std::size_t rank = 0; rank < layouts.size(); ++rank)
        for (const auto& m : with_layout(layouts[rank]).slots_) {
            const auto* const known = out.find(m.name);
            if (known == nullptr) {
                out.slot(m.name, m.kind);
                first.push_back(rank);
            } else if (known->kind != m.kind) {
                return error(errc::mismatch,
                             fmt::format("rank {} reported '{}' as a {}, rank {} as a {}", rank,
                                         m.name, to_string(m.kind),
                                         first[static_cast<std::size_t>(known - out.slots_.data())],
                                         to_string(known->kind)))
                    .with_hint("report one name by one kind on every rank");
            }
        }
    return out;
}

SKEIN_INLINE std::vector<metric_value> metric_set::values() const {
    std::vector<metric_value> out;
    out.reserve(slots_.size());
    for (auto& m : slots_)
        if (m.used) out.push_back({m.name, detail::finish_metric(m.kind, m.value, m.weight)});
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
    for (auto& m : slots_) p.maxima.push_back(m.used ? detail::most_ranks - rank : 0.0);
    for (auto* part : {&p.sums, &p.maxima})
        part->resize((part->size() + pack_unit - 1) / pack_unit * pack_unit, 0.0);
    return p;
}

SKEIN_INLINE bool metric_set::same_names(const packed_metrics& merged) noexcept {
    return merged.maxima[0] == -merged.maxima[2] && merged.maxima[1] == -merged.maxima[3];
}

SKEIN_INLINE std::size_t metric_set::first_reporter() const noexcept {
    return 4 + static_cast<std::size_t>(std::ranges::count_if(slots_, [](const slot_type& m) {
               return m.kind == metric_kind::max || m.kind == metric_kind::min;
           }));
}

template <class Call>
void metric_set::each_late(const packed_metrics& merged, Call call) const {
    if (!same_names(merged)) return; // on every rank alike: unpack() says so
    std::size_t sums = 0, reporters = first_reporter();
    for (const auto& m : slots_) {
        const double by = merged.maxima[reporters++];
        if (m.kind == metric_kind::last && by > 0 && by != detail::most_ranks)
            call(sums, static_cast<int>(detail::most_ranks - by), m);
        sums += m.kind == metric_kind::mean                                 ? 2
                : m.kind == metric_kind::sum || m.kind == metric_kind::last ? 1
                                                                            : 0;
    }
}

SKEIN_INLINE std::vector<double> metric_set::lasts_of(const packed_metrics& merged,
                                                      int rank) const {
    std::vector<double> mine;
    each_late(merged, [&](std::size_t, int by, const slot_type& m) {
        mine.push_back(by == rank ? m.value : 0.0);
    });
    return mine;
}

SKEIN_INLINE void metric_set::put_lasts(packed_metrics& merged,
                                        std::span<const double> summed) const {
    std::size_t next = 0;
    each_late(merged,
              [&](std::size_t sum, int, const slot_type&) { merged.sums[sum] = summed[next++]; });
}

SKEIN_INLINE result<std::vector<metric_value>> metric_set::unpack(
    const packed_metrics& merged) const {
    const auto mine = pack(0);
    if (merged.sums.size() != mine.sums.size() || merged.maxima.size() != mine.maxima.size())
        return error(errc::mismatch, "merged metrics have another length than this rank's");
    if (!same_names(merged))
        return error(errc::mismatch,
                     fmt::format("the ranks reported different metrics; this rank: {}", names()))
            .with_hint("call report() with the same names in the same order on every rank");
    std::vector<metric_value> out;
    out.reserve(slots_.size());
    std::size_t s = 0, x = 4, reporters = first_reporter();
    for (auto& m : slots_) {
        const bool in_sums = m.kind != metric_kind::max && m.kind != metric_kind::min;
        const double value = in_sums ? merged.sums[s++] : merged.maxima[x++];
        const double weight = m.kind == metric_kind::mean ? merged.sums[s++] : 1.0;
        if (merged.maxima[reporters++] <= 0) continue; // by nobody
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

SKEIN_INLINE const metric_set::slot_type* metric_set::find(std::string_view name) const noexcept {
    const auto it = std::ranges::find(slots_, name, &slot_type::name);
    return it == slots_.end() ? nullptr : &*it;
}

SKEIN_INLINE metric_set::slot_type& metric_set::reported(std::string_view name, metric_kind kind) {
    auto& m = slot(name, kind);
    m.used = true;
    return m;
}

SKEIN_INLINE metric_set::slot_type& metric_set::slot(std::string_view name, metric_kind kind) {
    for (auto& m : slots_) {
        if (m.name != name) continue;
        if (m.kind != kind)
            throw error(errc::usage, fmt::format("metric '{}' was reported as {} and as {}", name,
                                                 to_string(m.kind), to_string(kind)))
                .with_hint("report it under two names");
        return m;
    }
    const auto takes = [&](std::string_view t) {
        return name == t || (t.ends_with('/') && name.starts_with(t));
    };
    if (std::ranges::any_of(taken_, takes))
        throw error(errc::usage, fmt::format("the metric name '{}' is taken by the trainer", name))
            .with_hint("report it under another name");
    require_metric_name(name);
    const double infinity = std::numeric_limits<double>::infinity();
    const double start = kind == metric_kind::max   ? -infinity
                         : kind == metric_kind::min ? infinity
                                                    : 0.0;
    slots_.push_back({std::string(name), kind, start, 0.0, false});
    return slots_.back();
}

SKEIN_INLINE void require_metric_name(std::string_view name) {
    if (name.empty()) throw error(errc::usage, "a metric without a name").with_hint("give it one");
    if (auto shown = printable(name); shown != name)
        throw error(errc::usage, fmt::format("a metric called '{}'", shown))
            .with_hint("names are UTF-8 on one line, without control characters");
}

SKEIN_INLINE std::string names_of(const std::vector<metric_value>& values) {
    name_list list;
    for (const auto& m : values) list.add(m.name);
    return list.text("there are none");
}

SKEIN_INLINE const double* find_metric(const std::vector<metric_value>& values,
                                       std::string_view name) noexcept {
    auto it = std::find_if(values.begin(), values.end(), [&](auto& v) { return v.name == name; });
    return it == values.end() ? nullptr : &it->value;
}

} // namespace skein::report

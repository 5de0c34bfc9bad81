// SPDX-License-Identifier: Apache-2.0
#pragma once
// Metrics that know how to be merged: over the steps of a window and over the ranks.
//
// A loss is a mean weighted by samples, a token count is a sum, a peak is a max. Each rank adds to its
// own metric_set; all metrics of all ranks are then merged by two all-reduces of packed float64
// (one sum, one max; min travels negated), never by one collective per metric.
//
//     metric_set m;
//     m.mean("loss", loss, samples).sum("tokens", n).last("lr", lr);
//     auto packed = m.pack(rank);                      // packed.sums, packed.maxima
//     all_reduce(packed.sums, sum); all_reduce(packed.maxima, max);
//     auto merged = m.unpack(packed).value();          // merged[0].name == "loss" ...

#include <skein/core/bytes.hpp>
#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/result.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

/// How values of one metric are put together.
enum class metric_kind : std::uint8_t {
    mean, ///< weighted mean: sum(value * weight) / sum(weight)
    sum,
    max,
    min,
    last, ///< the newest value of rank 0 (learning rate, step number)
};

using skein::to_string; // the overload below must not hide those of the core

[[nodiscard]] constexpr std::string_view to_string(metric_kind kind) noexcept {
    switch (kind) {
    case metric_kind::mean: return "mean";
    case metric_kind::sum: return "sum";
    case metric_kind::max: return "max";
    case metric_kind::min: return "min";
    case metric_kind::last: return "last";
    }
    return "unknown";
}

/// One merged number, ready for a file or a screen.
struct metric_value {
    std::string name;
    double value = 0.0;

    friend bool operator==(const metric_value&, const metric_value&) = default;
};

/// All metrics of one rank as float64 for two all-reduces. Both lengths are a multiple of
/// metric_set::pack_unit, so ranks that report different names still meet in the same collective and
/// are told by unpack() instead of hanging.
struct packed_metrics {
    std::vector<double> sums;   ///< all-reduce with sum
    std::vector<double> maxima; ///< all-reduce with max
};

/// The metrics of one rank since the last clear(). Order of first use is order of output.
class metric_set {
public:
    static constexpr std::size_t pack_unit = 64;

    metric_set& mean(std::string_view name, double value, double weight = 1.0) {
        auto& m = slot(name, metric_kind::mean);
        m.value += value * weight;
        m.weight += weight;
        return *this;
    }
    metric_set& sum(std::string_view name, double value) {
        slot(name, metric_kind::sum).value += value;
        return *this;
    }
    metric_set& max(std::string_view name, double value) {
        auto& m = slot(name, metric_kind::max);
        m.value = keep(m.value, value, m.value < value);
        return *this;
    }
    metric_set& min(std::string_view name, double value) {
        auto& m = slot(name, metric_kind::min);
        m.value = keep(m.value, value, m.value > value);
        return *this;
    }
    metric_set& last(std::string_view name, double value) {
        slot(name, metric_kind::last).value = value;
        return *this;
    }
    /// The same by a kind chosen at run time; weight counts only for a mean.
    metric_set& add(metric_kind kind, std::string_view name, double value, double weight = 1.0) {
        switch (kind) {
        case metric_kind::mean: return mean(name, value, weight);
        case metric_kind::sum: return sum(name, value);
        case metric_kind::max: return max(name, value);
        case metric_kind::min: return min(name, value);
        case metric_kind::last: return last(name, value);
        }
        return *this;
    }

    [[nodiscard]] bool empty() const noexcept { return slots_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    void clear() noexcept { slots_.clear(); }

    /// This rank's own numbers, not merged over ranks.
    [[nodiscard]] std::vector<metric_value> values() const {
        std::vector<metric_value> out;
        out.reserve(slots_.size());
        for (auto& m : slots_) out.push_back({m.name, finish(m.kind, m.value, m.weight)});
        return out;
    }

    /// Hash of names and kinds in order: equal on all ranks or merging fails.
    [[nodiscard]] std::uint64_t layout_hash() const noexcept {
        fnv1a h;
        for (auto& m : slots_) {
            h.text(m.name);
            h.byte(0);
            h.byte(static_cast<std::uint8_t>(m.kind));
        }
        return h.value();
    }

    /// Layout of `sums`: per mean (value * weight, weight), per sum its value, per last its value on
    /// rank 0 and 0 elsewhere. Of `maxima`: two halves of the layout hash, the same negated, then per
    /// max its value and per min its negated value. Zeros pad both.
    [[nodiscard]] packed_metrics pack(int rank) const {
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

    /// The merged numbers, the same on every rank. errc::mismatch when the ranks packed other names.
    [[nodiscard]] result<std::vector<metric_value>> unpack(const packed_metrics& merged) const {
        const auto mine = pack(0);
        if (merged.sums.size() != mine.sums.size() || merged.maxima.size() != mine.maxima.size())
            return error(errc::mismatch, "merged metrics have another length than this rank's");
        if (merged.maxima[0] != -merged.maxima[2] || merged.maxima[1] != -merged.maxima[3])
            return error(errc::mismatch,
                         fmt::format("the ranks reported different metrics; this rank: "
                                     "{}",
                                     names()))
                .with_hint("call report() with the same names in the same order on every rank");
        std::vector<metric_value> out;
        out.reserve(slots_.size());
        std::size_t s = 0, x = 4;
        for (auto& m : slots_) {
            const bool in_sums = m.kind != metric_kind::max && m.kind != metric_kind::min;
            const double value = in_sums ? merged.sums[s++] : merged.maxima[x++];
            const double weight = m.kind == metric_kind::mean ? merged.sums[s++] : 1.0;
            out.push_back(
                {m.name, finish(m.kind, m.kind == metric_kind::min ? -value : value, weight)});
        }
        return out;
    }

    /// "loss (mean), tokens (sum)" for messages.
    [[nodiscard]] std::string names() const {
        std::string out;
        for (auto& m : slots_)
            out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", m.name, to_string(m.kind));
        return out;
    }

private:
    struct slot_type {
        std::string name;
        metric_kind kind = metric_kind::mean;
        double value = 0.0;  // mean: sum of value * weight
        double weight = 0.0; // mean only
    };

    // A NaN, once in, stays: a broken number must not be hidden by a later good one.
    static double keep(double old, double value, bool better) noexcept {
        return old != old ? old : (better || value != value ? value : old);
    }
    static double finish(metric_kind kind, double value, double weight) noexcept {
        if (kind != metric_kind::mean) return value;
        return weight == 0.0 ? std::numeric_limits<double>::quiet_NaN() : value / weight;
    }
    slot_type& slot(std::string_view name, metric_kind kind) {
        for (auto& m : slots_) {
            if (m.name != name) continue;
            SKEIN_CHECK(m.kind == kind, "metric '{}' was reported as {} and as {}", name,
                        to_string(m.kind), to_string(kind));
            return m;
        }
        const double infinity = std::numeric_limits<double>::infinity();
        const double start = kind == metric_kind::max   ? -infinity
                             : kind == metric_kind::min ? infinity
                                                        : 0.0;
        slots_.push_back({std::string(name), kind, start, 0.0});
        return slots_.back();
    }

    std::vector<slot_type> slots_;
};

/// The value called `name`, or nothing.
[[nodiscard]] inline const double* find_metric(const std::vector<metric_value>& values,
                                               std::string_view name) noexcept {
    auto it = std::find_if(values.begin(), values.end(), [&](auto& v) { return v.name == name; });
    return it == values.end() ? nullptr : &it->value;
}

} // namespace skein::train

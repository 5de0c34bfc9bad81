// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/metric_registry.hpp.

#include <skein/core/error.hpp>
#include <skein/core/printable.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace skein {

SKEIN_INLINE void metric_histogram::add(double value) noexcept {
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
}

SKEIN_INLINE std::vector<std::uint64_t> metric_histogram::counts() const {
    std::vector<std::uint64_t> out;
    for (std::size_t i = 0; i <= bounds_.size(); ++i)
        out.push_back(counts_[i].load(std::memory_order_relaxed));
    return out;
}

namespace detail {

[[nodiscard]] inline bool is_name(std::string_view name, bool colons) noexcept {
    const auto fits = [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || (colons && c == ':');
    };
    return !name.empty() && name.size() <= 200 && (name.front() < '0' || name.front() > '9') &&
           std::all_of(name.begin(), name.end(), fits);
}

inline void check_metric(std::string_view name, const std::vector<metric_label>& labels,
                         const std::vector<double>& bounds) {
    if (!is_metric_name(name))
        throw error(errc::invalid_argument,
                    fmt::format("\"{}\" is no name of a metric", printable(std::string(name))))
            .with_hint("letters, digits and _, no digit in front");
    for (std::size_t i = 0; i < labels.size(); ++i)
        if (!is_label_name(labels[i].name) || (i > 0 && labels[i].name == labels[i - 1].name))
            throw error(errc::invalid_argument,
                        fmt::format("\"{}\" of metric {} is no name of a label, or there twice",
                                    printable(labels[i].name), name));
    if (bounds.size() > metric_histogram::most_bounds ||
        std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) != bounds.end() ||
        !std::all_of(bounds.begin(), bounds.end(), [](double b) { return std::isfinite(b); }))
        throw error(errc::invalid_argument,
                    fmt::format("the bounds of metric {} do not grow, or are more than {}", name,
                                metric_histogram::most_bounds));
}

inline void append_escaped(std::string& out, std::string_view text, bool quotes) {
    while (!text.empty()) {
        const auto length = utf8_length(text);
        const char c = text.front();
        if (length == 0)
            out += "\xef\xbf\xbd"; // one byte that is none would cost Prometheus all numbers
        else if (c == '\n')
            out += "\\n";
        else if (c == '\\' || (quotes && c == '"'))
            (out += '\\') += c;
        else
            out += text.substr(0, length);
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
}

/// `{a="b",le="0.5"}`; nothing where there is none.
inline void append_labels(std::string& out, const std::vector<metric_label>& labels,
                          std::string_view bound = {}) {
    bool is_first = true;
    const auto add = [&](std::string_view name, std::string_view value) {
        (out += std::exchange(is_first, false) ? '{' : ',') += name;
        out += "=\"";
        append_escaped(out, value, true);
        out += '"';
    };
    for (const auto& l : labels) add(l.name, l.value);
    if (!bound.empty()) add("le", bound);
    if (!is_first) out += '}';
}

[[nodiscard]] inline std::string metric_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
    return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                                : fmt::to_string(value);
}

inline void append_histogram(std::string& out, const metric_family& of, const metric_series& one) {
    std::uint64_t so_far = 0;
    for (std::size_t i = 0; i < one.counts.size(); ++i) {
        so_far += one.counts[i];
        (out += of.name) += "_bucket";
        append_labels(out, one.labels, i < of.bounds.size() ? metric_text(of.bounds[i]) : "+Inf");
        out += fmt::format(" {}\n", so_far);
    }
    (out += of.name) += "_sum";
    append_labels(out, one.labels);
    out += " " + metric_text(one.value) + "\n";
    (out += of.name) += "_count";
    append_labels(out, one.labels);
    out += fmt::format(" {}\n", so_far);
}

} // namespace detail

SKEIN_INLINE bool is_metric_name(std::string_view name) noexcept {
    return detail::is_name(name, true);
}
SKEIN_INLINE bool is_label_name(std::string_view name) noexcept {
    return detail::is_name(name, false) && !name.starts_with("__") && name != "le";
}

SKEIN_INLINE metric_registry& metric_registry::process() {
    static metric_registry all;
    return all;
}

SKEIN_INLINE metric_registry::cell* metric_registry::find(std::string_view name,
                                                          std::string_view help, series_kind kind,
                                                          std::vector<double> bounds,
                                                          std::vector<metric_label> labels) {
    std::sort(labels.begin(), labels.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    detail::check_metric(name, labels, bounds);
    std::string key;
    detail::append_labels(key, labels);
    const std::lock_guard held(mutex_);
    auto at = families_.find(name);
    if (at != families_.end() && (at->second.kind != kind || at->second.bounds != bounds))
        throw error(
            errc::mismatch,
            fmt::format("metric {} is there already, as another kind or with other bounds", name));
    if (at != families_.end())
        if (const auto known = at->second.by_labels.find(key); known != at->second.by_labels.end())
            return known->second;
    if (cells_.size() >= most_series) {
        dropped_.add();
        return nullptr;
    }
    if (at == families_.end())
        at =
            families_.emplace(std::string(name), family{std::string(help), kind, bounds, {}}).first;
    auto& made = cells_.emplace_back();
    made.labels = std::move(labels);
    if (kind == series_kind::histogram)
        made.histogram = std::make_unique<metric_histogram>(std::move(bounds));
    at->second.by_labels.emplace(std::move(key), &made);
    return &made;
}

SKEIN_INLINE metric_counter& metric_registry::counter(std::string_view name, std::string_view help,
                                                      std::vector<metric_label> labels) {
    auto* const found = find(name, help, series_kind::counter, {}, std::move(labels));
    return found != nullptr ? found->counter : no_counter_;
}
SKEIN_INLINE metric_gauge& metric_registry::gauge(std::string_view name, std::string_view help,
                                                  std::vector<metric_label> labels) {
    auto* const found = find(name, help, series_kind::gauge, {}, std::move(labels));
    return found != nullptr ? found->gauge : no_gauge_;
}
SKEIN_INLINE metric_histogram& metric_registry::histogram(std::string_view name,
                                                          std::string_view help,
                                                          std::vector<double> bounds,
                                                          std::vector<metric_label> labels) {
    auto* const found =
        find(name, help, series_kind::histogram, std::move(bounds), std::move(labels));
    return found != nullptr ? *found->histogram : no_histogram_;
}

SKEIN_INLINE std::vector<metric_family> metric_registry::collect() const {
    std::vector<metric_family> out;
    const std::lock_guard held(mutex_);
    for (const auto& [name, of] : families_) {
        auto& made = out.emplace_back(metric_family{name, of.help, of.kind, of.bounds, {}});
        for (const auto& [key, one] : of.by_labels) {
            metric_series s{one->labels, 0, {}};
            if (of.kind == series_kind::counter)
                s.value = static_cast<double>(one->counter.value());
            if (of.kind == series_kind::gauge) s.value = static_cast<double>(one->gauge.value());
            if (of.kind == series_kind::histogram) {
                s.counts = one->histogram->counts();
                s.value = one->histogram->sum();
            }
            made.series.push_back(std::move(s));
        }
    }
    return out;
}

SKEIN_INLINE std::size_t metric_registry::series() const {
    const std::lock_guard held(mutex_);
    return cells_.size();
}

SKEIN_INLINE void append_prometheus(std::string& out, const std::vector<metric_family>& all) {
    constexpr std::array kinds{"counter", "gauge", "histogram"};
    for (const auto& of : all) {
        if (!of.help.empty()) {
            out += "# HELP " + of.name + " ";
            detail::append_escaped(out, of.help, false);
            out += '\n';
        }
        const auto kind = std::min<std::size_t>(static_cast<std::size_t>(of.kind), 2);
        out += fmt::format("# TYPE {} {}\n", of.name, kinds[kind]);
        for (const auto& one : of.series) {
            if (of.kind == series_kind::histogram) {
                detail::append_histogram(out, of, one);
                continue;
            }
            out += of.name;
            detail::append_labels(out, one.labels);
            out += " " + detail::metric_text(one.value) + "\n";
        }
    }
}

} // namespace skein

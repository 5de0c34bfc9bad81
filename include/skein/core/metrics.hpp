// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counters, gauges and histograms in a registry, and their Prometheus text.
//
// Look a metric up once and keep the reference: it stays valid as long as the registry. Updating is
// one relaxed atomic operation, from any thread.
//
//     static auto& sent = telemetry::metrics().counter("skein_net_bytes_sent_total", "bytes sent");
//     sent.add(n);

#include <skein/core/check.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::telemetry {

/// Label name and value pairs, in the order they are written.
using labels = std::vector<std::pair<std::string, std::string>>;

/// Only grows.
class counter {
public:
    void add(std::uint64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t value() const noexcept {
        return value_.load(std::memory_order_relaxed);
    }

private:
    std::atomic<std::uint64_t> value_{0};
};

/// Goes up and down.
class gauge {
public:
    void set(double v) noexcept { value_.store(v, std::memory_order_relaxed); }
    void add(double v) noexcept { value_.fetch_add(v, std::memory_order_relaxed); }
    [[nodiscard]] double value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<double> value_{0};
};

/// Counts observations by upper bound; the last bucket has none.
class histogram {
public:
    /// bounds: strictly increasing, finite, inclusive upper bounds.
    explicit histogram(std::vector<double> bounds)
        : bounds_(std::move(bounds)),
          counts_(new std::atomic<std::uint64_t>[bounds_.size() + 1] {}) {
        for (std::size_t i = 0; i < bounds_.size(); ++i)
            SKEIN_CHECK(std::isfinite(bounds_[i]) && (i == 0 || bounds_[i - 1] < bounds_[i]),
                        "bound {} of a histogram is {}: bounds must be finite and increase", i,
                        bounds_[i]);
    }
    void observe(double v) noexcept {
        const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin();
        counts_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
        sum_.fetch_add(v, std::memory_order_relaxed);
    }
    [[nodiscard]] const std::vector<double>& bounds() const noexcept { return bounds_; }
    /// One count per bound, then the count above all of them; not cumulative.
    [[nodiscard]] std::vector<std::uint64_t> counts() const {
        std::vector<std::uint64_t> out(bounds_.size() + 1);
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = counts_[i].load(std::memory_order_relaxed);
        return out;
    }
    [[nodiscard]] double sum() const noexcept { return sum_.load(std::memory_order_relaxed); }

private:
    std::vector<double> bounds_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
    std::atomic<double> sum_{0};
};

/// first, first*factor, ... : `count` bounds for a histogram.
[[nodiscard]] inline std::vector<double> exponential_bounds(double first, double factor,
                                                            int count) {
    std::vector<double> bounds;
    for (double b = first; count > 0; --count, b *= factor) bounds.push_back(b);
    return bounds;
}

enum class kind : std::uint8_t { counter, gauge, histogram };

/// The value of one metric at one moment.
struct sample {
    std::string name, help;
    labels with;
    kind type = kind::counter;
    double value = 0;                  ///< counter, gauge: value; histogram: number of observations
    double sum = 0;                    ///< histogram only
    std::vector<double> bounds;        ///< histogram only
    std::vector<std::uint64_t> counts; ///< histogram only, as histogram::counts()
};

/// Owns metrics by name and labels. Thread-safe.
class registry {
public:
    registry() = default;
    registry(const registry&) = delete;
    registry& operator=(const registry&) = delete;

    /// The counter of that name and labels, made at first use. Names: [a-zA-Z_:][a-zA-Z0-9_:]*.
    telemetry::counter& counter(std::string_view name, std::string_view help, labels with = {}) {
        return *find(kind::counter, name, help, std::move(with), {}).as_counter;
    }
    telemetry::gauge& gauge(std::string_view name, std::string_view help, labels with = {}) {
        return *find(kind::gauge, name, help, std::move(with), {}).as_gauge;
    }
    telemetry::histogram& histogram(std::string_view name, std::string_view help,
                                    std::vector<double> bounds, labels with = {}) {
        return *find(kind::histogram, name, help, std::move(with), std::move(bounds)).as_histogram;
    }

    /// All values, ordered by name and labels.
    [[nodiscard]] std::vector<sample> snapshot() const {
        const std::lock_guard lock(mutex_);
        std::vector<sample> out;
        for (const auto& [name, family] : families_)
            for (const auto& [with, one] : family.members)
                out.push_back(read(name, family, with, one));
        return out;
    }

private:
    struct member {
        std::unique_ptr<telemetry::counter> as_counter;
        std::unique_ptr<telemetry::gauge> as_gauge;
        std::unique_ptr<telemetry::histogram> as_histogram;
    };
    struct family {
        kind type = kind::counter;
        std::string help;
        std::map<labels, member> members;
    };

    static bool is_name(std::string_view name) noexcept {
        if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
        return std::all_of(name.begin(), name.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   c == '_' || c == ':';
        });
    }
    member& find(kind type, std::string_view name, std::string_view help, labels with,
                 std::vector<double> bounds) {
        SKEIN_CHECK(is_name(name), "\"{}\" is not a metric name", name);
        const std::lock_guard lock(mutex_);
        const auto [at, is_new] = families_.try_emplace(std::string(name));
        auto& f = at->second;
        if (is_new) {
            f.type = type;
            f.help = help;
        }
        SKEIN_CHECK(f.type == type, "metric {} is registered with two kinds", name);
        auto& m = f.members[std::move(with)];
        if (type == kind::counter && !m.as_counter)
            m.as_counter = std::make_unique<telemetry::counter>();
        if (type == kind::gauge && !m.as_gauge) m.as_gauge = std::make_unique<telemetry::gauge>();
        if (type == kind::histogram && !m.as_histogram)
            m.as_histogram = std::make_unique<telemetry::histogram>(std::move(bounds));
        return m;
    }
    static sample read(const std::string& name, const family& f, const labels& with,
                       const member& m) {
        sample s;
        s.name = name;
        s.help = f.help;
        s.with = with;
        s.type = f.type;
        if (m.as_counter) s.value = static_cast<double>(m.as_counter->value());
        if (m.as_gauge) s.value = m.as_gauge->value();
        if (m.as_histogram) {
            s.sum = m.as_histogram->sum();
            s.bounds = m.as_histogram->bounds();
            s.counts = m.as_histogram->counts();
            for (const auto n : s.counts) s.value += static_cast<double>(n);
        }
        return s;
    }

    mutable std::mutex mutex_; // guards the maps, not the values
    std::map<std::string, family, std::less<>> families_;
};

/// The registry of this process.
[[nodiscard]] inline registry& metrics() {
    static registry* const all = new registry; // never destroyed: references outlive static objects
    return *all;
}

namespace detail {
inline std::string number(double v) {
    if (std::isnan(v)) return "NaN";
    if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
    return fmt::format("{}", v);
}
inline void append_escaped(std::string& to, std::string_view text, bool quotes) {
    for (const char c : text) {
        if (c == '\\')
            to += "\\\\";
        else if (c == '\n')
            to += "\\n";
        else if (c == '"' && quotes)
            to += "\\\"";
        else
            to += c;
    }
}
inline std::string label_text(const labels& with, std::string_view le) {
    if (with.empty() && le.empty()) return {};
    std::string out = "{";
    for (const auto& [name, value] : with) {
        if (out.size() > 1) out += ',';
        out += name + "=\"";
        append_escaped(out, value, true);
        out += '"';
    }
    if (!le.empty()) {
        if (out.size() > 1) out += ',';
        out += "le=\"";
        out += le;
        out += '"';
    }
    return out + "}";
}
} // namespace detail

/// The Prometheus text format, version 0.0.4. Counters should be named ..._total.
[[nodiscard]] inline std::string prometheus_text(const std::vector<sample>& samples) {
    static constexpr std::string_view kinds[] = {"counter", "gauge", "histogram"};
    std::string out;
    const std::string* family = nullptr;
    for (const auto& s : samples) {
        if (family == nullptr || *family != s.name) {
            out += "# HELP " + s.name + " ";
            detail::append_escaped(out, s.help, false);
            out += fmt::format("\n# TYPE {} {}\n", s.name, kinds[static_cast<int>(s.type)]);
            family = &s.name;
        }
        if (s.type != kind::histogram) {
            out += s.name + detail::label_text(s.with, "") + " " + detail::number(s.value) + "\n";
            continue;
        }
        std::uint64_t below = 0;
        for (std::size_t i = 0; i < s.counts.size(); ++i) {
            below += s.counts[i];
            const auto le = i < s.bounds.size() ? detail::number(s.bounds[i]) : "+Inf";
            out += fmt::format("{}_bucket{} {}\n", s.name, detail::label_text(s.with, le), below);
        }
        const auto plain = detail::label_text(s.with, "");
        out += fmt::format("{}_sum{} {}\n", s.name, plain, detail::number(s.sum));
        out += fmt::format("{}_count{} {}\n", s.name, plain, below);
    }
    return out;
}

} // namespace skein::telemetry

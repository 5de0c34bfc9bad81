// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers of a process that others may read: counters, gauges and histograms, by name and labels.
//
//     auto& sent = metric_registry::process().counter("skein_net_sent_bytes_total", "Bytes sent.");
//     sent.add(n);                                     // one relaxed atomic add
//     std::string text;                                // for Prometheus
//     append_prometheus(text, metric_registry::process().collect());
//
// Look a number up once and keep the reference: it is good for the registry's life. There are
// most_series of them at most; what is asked for beyond that is counted as dropped, and what is
// added to it is nowhere to be seen. Names are those of Prometheus: base units, `_total` for counters.

#include <skein/core/config.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace skein {

/// What a number means.
enum class series_kind : std::uint8_t {
    counter,  ///< grows until its process ends
    gauge,    ///< what is now
    histogram ///< how often a value was in which range
};

/// Tells a number from others of its name. Few values: each is a series of its own.
struct metric_label {
    std::string name, value;
    friend bool operator==(const metric_label&, const metric_label&) = default;
};

/// Grows. Safe on several threads.
class metric_counter {
public:
    void add(std::uint64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t value() const noexcept {
        return value_.load(std::memory_order_relaxed);
    }

private:
    std::atomic<std::uint64_t> value_{0};
};

/// Goes up and down. Safe on several threads.
class metric_gauge {
public:
    void set(std::int64_t to) noexcept { value_.store(to, std::memory_order_relaxed); }
    void add(std::int64_t n) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
    [[nodiscard]] std::int64_t value() const noexcept {
        return value_.load(std::memory_order_relaxed);
    }

private:
    std::atomic<std::int64_t> value_{0};
};

/// Counts values by range. Safe on several threads; who reads while others add may see a value in
/// its range and not yet in the sum.
class metric_histogram {
public:
    static constexpr std::size_t most_bounds = 32;

    /// bounds: the greatest value of each range, growing; one more range is above all of them.
    explicit metric_histogram(std::vector<double> bounds) : bounds_(std::move(bounds)) {}
    void add(double value) noexcept;
    /// By range, not added up.
    [[nodiscard]] std::vector<std::uint64_t> counts() const;
    [[nodiscard]] double sum() const noexcept { return sum_.load(std::memory_order_relaxed); }
    [[nodiscard]] const std::vector<double>& bounds() const noexcept { return bounds_; }

private:
    std::vector<double> bounds_;
    std::array<std::atomic<std::uint64_t>, most_bounds + 1> counts_{};
    std::atomic<double> sum_{0};
};

/// A number, as it was.
struct metric_series {
    std::vector<metric_label> labels;  ///< by name
    double value = 0;                  ///< of a histogram: the sum
    std::vector<std::uint64_t> counts; ///< of a histogram
};

/// All numbers of one name, as they were.
struct metric_family {
    std::string name, help; ///< help: may be empty
    series_kind kind = series_kind::counter;
    std::vector<double> bounds; ///< of histograms
    std::vector<metric_series> series;
};

/// Safe on several threads.
class metric_registry {
public:
    static constexpr std::size_t most_series = 10'000;

    metric_registry() = default;
    metric_registry(const metric_registry&) = delete;
    metric_registry& operator=(const metric_registry&) = delete;

    /// That of this process.
    [[nodiscard]] static metric_registry& process();

    /// The same one each time for the same name and labels, in whatever order these are.
    ///   errors  invalid_argument: no name or label for Prometheus; mismatch: the name is taken for
    ///           another kind, or for other bounds
    [[nodiscard]] metric_counter& counter(std::string_view name, std::string_view help,
                                          std::vector<metric_label> labels = {});
    [[nodiscard]] metric_gauge& gauge(std::string_view name, std::string_view help,
                                      std::vector<metric_label> labels = {});
    [[nodiscard]] metric_histogram& histogram(std::string_view name, std::string_view help,
                                              std::vector<double> bounds,
                                              std::vector<metric_label> labels = {});

    /// All there are, by name.
    [[nodiscard]] std::vector<metric_family> collect() const;
    [[nodiscard]] std::size_t series() const;
    /// How often a number was asked for that could not be made.
    [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.value(); }

private:
    struct cell {
        std::vector<metric_label> labels;
        metric_counter counter{};
        metric_gauge gauge{};
        std::unique_ptr<metric_histogram> histogram{};
    };
    struct family {
        std::string help;
        series_kind kind = series_kind::counter;
        std::vector<double> bounds;
        std::map<std::string, cell*> by_labels;
    };
    cell* find(std::string_view name, std::string_view help, series_kind kind,
               std::vector<double> bounds, std::vector<metric_label> labels);

    mutable std::mutex mutex_; // guards families_ and cells_, not the numbers
    std::map<std::string, family, std::less<>> families_;
    std::deque<cell> cells_; // they stay where they are
    metric_counter dropped_, no_counter_;
    metric_gauge no_gauge_;
    metric_histogram no_histogram_{{}};
};

/// Whether Prometheus takes it for the name of a metric, and of a label.
[[nodiscard]] bool is_metric_name(std::string_view name) noexcept;
[[nodiscard]] bool is_label_name(std::string_view name) noexcept;

/// In the text form of Prometheus 0.0.4. Values of labels may be any text.
void append_prometheus(std::string& out, const std::vector<metric_family>& all);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/metric_registry.ipp>
#endif

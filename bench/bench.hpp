// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every benchmark shares: interleaved measurements and one JSON line per figure.
//
// A figure stands beside its baseline, measured in turns with it in the same run, because absolute
// times on a shared machine drift by a factor of two. `ok` compares the ratio (or, without a
// baseline, the value) with the bar; a figure without a bar is for information.
//
//     const auto [ours, theirs] = bench::in_turns<2>(15, {run_ours, run_asio});
//     bench::figure("core.await", ours.median, "ns").against("asio", theirs.median).at_most(1.3).print();

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace bench {

/// What several runs of one measurement gave.
struct samples {
    double least = 0, median = 0, most = 0;
};

[[nodiscard]] inline samples summary(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    samples s;
    if (values.empty()) return s;
    s.least = values.front();
    s.median = values[values.size() / 2];
    s.most = values.back();
    return s;
}

/// The value at a fraction of the sorted values, e.g. 0.5 or 0.99.
[[nodiscard]] inline double percentile(std::vector<double> values, double fraction) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto at = static_cast<std::size_t>(fraction * static_cast<double>(values.size()));
    return values[std::min(at, values.size() - 1)];
}

/// Seconds that f() takes.
template <class F>
[[nodiscard]] double seconds(F&& f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Seconds of processor time that f() takes on this thread: for work that never waits. Other
/// programs on the machine do not count.
template <class F>
[[nodiscard]] double cpu_seconds(F&& f) {
    const auto now = [] {
        std::timespec t{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
    };
    const double begin = now();
    f();
    return now() - begin;
}

/// Nanoseconds per operation of f(), which does `operations` of them, in processor time.
template <class F>
[[nodiscard]] double cpu_ns_per(std::size_t operations, F&& f) {
    return cpu_seconds(std::forward<F>(f)) * 1e9 / static_cast<double>(operations);
}

/// Nanoseconds per operation of f(), which does `operations` of them.
template <class F>
[[nodiscard]] double ns_per(std::size_t operations, F&& f) {
    return seconds(std::forward<F>(f)) * 1e9 / static_cast<double>(operations);
}

/// Runs the measurements in turns (a b c, a b c, ...), after one round that does not count.
template <std::size_t N>
[[nodiscard]] std::array<samples, N> in_turns(int rounds,
                                              std::array<std::function<double()>, N> what) {
    std::array<std::vector<double>, N> values;
    for (int round = -1; round < rounds; ++round)
        for (std::size_t i = 0; i < N; ++i) {
            const double v = what[i]();
            if (round >= 0) values[i].push_back(v);
        }
    std::array<samples, N> out;
    for (std::size_t i = 0; i < N; ++i) out[i] = summary(std::move(values[i]));
    return out;
}

/// Keeps the compiler from dropping a computation.
template <class T>
inline void keep(const T& value) {
    asm volatile("" : : "r,m"(value) : "memory");
}

/// One line of output.
class figure {
public:
    figure(std::string name, double value, std::string unit)
        : name_(std::move(name)), value_(value), unit_(std::move(unit)) {}

    figure&& against(std::string baseline, double value) && {
        baseline_ = std::move(baseline);
        baseline_value_ = value;
        return std::move(*this);
    }
    /// The bar: what the ratio to the baseline (without one: the value) may be at most or at least.
    figure&& at_most(double bar) && {
        bar_ = bar;
        more_is_better_ = false;
        return std::move(*this);
    }
    figure&& at_least(double bar) && {
        bar_ = bar;
        more_is_better_ = true;
        return std::move(*this);
    }
    /// One more word about it, e.g. which release the baseline is.
    figure&& with(const std::string& key, const std::string& text) && {
        more_ += fmt::format(",\"{}\":\"{}\"", key, text);
        return std::move(*this);
    }
    /// True if there is no bar or it is met.
    bool print() const {
        std::optional<double> ratio;
        if (baseline_value_ && *baseline_value_ != 0) ratio = value_ / *baseline_value_;
        const double compared = ratio.value_or(value_);
        const bool ok = !bar_ || (more_is_better_ ? compared >= *bar_ : compared <= *bar_);
        fmt::print(
            "{{\"name\":\"{}\",\"value\":{},\"unit\":\"{}\",\"baseline\":{},\"baseline_value\":{},"
            "\"ratio\":{},\"bar\":{},\"ok\":{}{}}}\n",
            name_, number(value_), unit_, baseline_.empty() ? "null" : "\"" + baseline_ + "\"",
            number(baseline_value_), number(ratio), number(bar_),
            bar_ ? (ok ? "true" : "false") : "null", more_);
        std::fflush(stdout);
        return ok;
    }

private:
    static std::string number(std::optional<double> v) {
        return v ? fmt::format("{:.6g}", *v) : "null";
    }

    std::string name_;
    double value_;
    std::string unit_, baseline_, more_;
    std::optional<double> baseline_value_, bar_;
    bool more_is_better_ = false;
};

} // namespace bench

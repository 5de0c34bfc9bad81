// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a metric remembers between batches: arrays of fixed size that know how those of two batches,
// or of two ranks, become one.
//
// Everything is float64: counts are exact up to 2^53, and the arrays of all metrics of a stage
// travel in one exchange per kind.
//
//     struct mean_error {
//         skein::metrics::summed distance, weight; // one number each
//         ...
//     };

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace skein::metrics {

/// How the arrays of two batches or ranks become one.
enum class merge_kind : std::uint8_t {
    sum,
    max,
    min,
    rows, ///< all of them, in rank order: memory grows with the samples
};

[[nodiscard]] constexpr std::string_view to_string(merge_kind kind) noexcept {
    switch (kind) {
    case merge_kind::sum: return "sum";
    case merge_kind::max: return "max";
    case merge_kind::min: return "min";
    case merge_kind::rows: return "rows";
    }
    return "unknown";
}

/// Numbers that are merged element by element. One of them unless a size is given.
template <merge_kind K>
    requires(K != merge_kind::rows)
class accumulator {
public:
    static constexpr merge_kind kind = K;
    /// What nothing counts as.
    static constexpr double none = K == merge_kind::sum   ? 0.0
                                   : K == merge_kind::max ? -std::numeric_limits<double>::infinity()
                                                          : std::numeric_limits<double>::infinity();

    accumulator() : values_(1, none) {}
    explicit accumulator(std::size_t size) : values_(size, none) {}

    /// So many elements, of nothing yet.
    void resize(std::size_t size) { values_.assign(size, none); }
    void clear() noexcept {
        for (auto& each : values_) each = none;
    }
    [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
    [[nodiscard]] double& operator[](std::size_t i) noexcept { return values_[i]; }
    [[nodiscard]] double operator[](std::size_t i) const noexcept { return values_[i]; }
    [[nodiscard]] std::span<double> values() noexcept { return values_; }
    [[nodiscard]] std::span<const double> values() const noexcept { return values_; }

private:
    std::vector<double> values_;
};

using summed = accumulator<merge_kind::sum>;
using largest = accumulator<merge_kind::max>;
using smallest = accumulator<merge_kind::min>;

/// Rows of float32 that all ranks give together, for numbers that no array of fixed size can hold.
class gathered {
public:
    static constexpr merge_kind kind = merge_kind::rows;

    /// width: numbers of a row, at least 1
    explicit gathered(std::size_t width = 1) : width_(width > 0 ? width : 1) {}

    /// So many numbers a row, and no row yet.
    void resize(std::size_t width) {
        width_ = width > 0 ? width : 1;
        values_.clear();
    }
    void clear() noexcept { values_.clear(); }
    /// Room for so many rows altogether.
    void reserve(std::size_t rows) { values_.reserve(rows * width_); }
    /// One row, or several: a multiple of width() numbers. Throws errc::usage for others.
    void push(std::initializer_list<float> row) { push(std::span(row.begin(), row.size())); }
    void push(std::span<const float> row) {
        if (row.size() % width_ != 0)
            throw error(errc::usage, "a gathered row has other numbers than its width")
                .with_hint("say the width in begin(): rows.resize(width)");
        values_.insert(values_.end(), row.begin(), row.end());
    }
    /// Keeps the first rows.
    void truncate(std::size_t rows) {
        if (rows < this->rows()) values_.resize(rows * width_);
    }
    [[nodiscard]] std::size_t width() const noexcept { return width_; }
    [[nodiscard]] std::size_t rows() const noexcept { return values_.size() / width_; }
    [[nodiscard]] float at(std::size_t row, std::size_t column) const noexcept {
        return values_[row * width_ + column];
    }
    [[nodiscard]] std::span<const float> values() const noexcept { return values_; }

private:
    std::size_t width_;
    std::vector<float> values_;
};

} // namespace skein::metrics

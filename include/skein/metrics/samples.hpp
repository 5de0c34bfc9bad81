// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a metric is shown: predictions, what they should be, and what each counts, as plain arrays
// of the host, so that metrics know nothing of tensors.
//
//     const float scores[] = {0.1f, 0.9f, 0.8f, 0.2f};
//     const std::int64_t labels[] = {1, 0};
//     const samples shown{.preds = {scores, {2, 2}}, .target = {labels, {2}}};

#include <skein/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace skein::metrics {

/// The type of an array's elements.
enum class element : std::uint8_t { float32, float64, int64, boolean };

[[nodiscard]] constexpr std::string_view to_string(element type) noexcept {
    switch (type) {
    case element::float32: return "float32";
    case element::float64: return "float64";
    case element::int64: return "int64";
    case element::boolean: return "bool";
    }
    return "unknown";
}

/// Elements of one type in row-major order, with their shape. Refers to memory of the host.
class array_view {
public:
    static constexpr std::size_t most_dimensions = 8;
    using shape_type = std::initializer_list<std::size_t>;

    /// Nothing: is_given() is false.
    array_view() = default;
    array_view(const float* data, shape_type shape) : array_view(data, element::float32, shape) {}
    array_view(const double* data, shape_type shape) : array_view(data, element::float64, shape) {}
    array_view(const std::int64_t* data, shape_type shape)
        : array_view(data, element::int64, shape) {}
    /// One byte each: 0 or 1.
    array_view(const bool* data, shape_type shape) : array_view(data, element::boolean, shape) {}
    /// shape: at most most_dimensions extents
    array_view(const void* data, element type, std::span<const std::size_t> shape);

    [[nodiscard]] bool is_given() const noexcept { return given_; }
    [[nodiscard]] element type() const noexcept { return type_; }
    [[nodiscard]] bool is_floating() const noexcept {
        return type_ == element::float32 || type_ == element::float64;
    }
    [[nodiscard]] std::size_t dimensions() const noexcept { return dimensions_; }
    [[nodiscard]] std::span<const std::size_t> shape() const noexcept {
        return {shape_.data(), dimensions_};
    }
    /// Of dimension d; 1 behind the last one.
    [[nodiscard]] std::size_t extent(std::size_t d) const noexcept {
        return d < dimensions_ ? shape_[d] : 1;
    }
    /// Elements; 1 for no dimensions.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Any type as a double.
    [[nodiscard]] double operator[](std::size_t i) const noexcept {
        switch (type_) {
        case element::float32: return static_cast<const float*>(data_)[i];
        case element::float64: return static_cast<const double*>(data_)[i];
        case element::int64: return static_cast<double>(static_cast<const std::int64_t*>(data_)[i]);
        case element::boolean: return static_cast<const bool*>(data_)[i] ? 1.0 : 0.0;
        }
        return 0.0;
    }
    /// Null when the elements are of another type.
    [[nodiscard]] const float* float32() const noexcept {
        return type_ == element::float32 ? static_cast<const float*>(data_) : nullptr;
    }
    [[nodiscard]] const std::int64_t* int64() const noexcept {
        return type_ == element::int64 ? static_cast<const std::int64_t*>(data_) : nullptr;
    }
    [[nodiscard]] const double* float64() const noexcept {
        return type_ == element::float64 ? static_cast<const double*>(data_) : nullptr;
    }
    [[nodiscard]] const bool* boolean() const noexcept {
        return type_ == element::boolean ? static_cast<const bool*>(data_) : nullptr;
    }
    /// "float32 [64, 10]" for messages.
    [[nodiscard]] std::string text() const;

private:
    array_view(const void* data, element type, shape_type shape)
        : array_view(data, type, std::span<const std::size_t>(shape.begin(), shape.size())) {}

    const void* data_ = nullptr;
    std::array<std::size_t, most_dimensions> shape_{};
    std::size_t dimensions_ = 0, size_ = 0;
    element type_ = element::float32;
    bool given_ = false;
};

/// One call of update(). Which shapes belong together is each metric's own matter.
struct samples {
    array_view preds{};  ///< e.g. scores [samples, classes]
    array_view target{}; ///< e.g. labels [samples]
    /// What each element of target counts: of target's shape, or one for each of its rows. Finite, at
    /// least 0; what counts 0 is not looked at. Not given: 1.
    array_view weight{};
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/samples.ipp>
#endif

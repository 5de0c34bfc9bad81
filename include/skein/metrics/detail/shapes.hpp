// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the metrics ask of samples before they count: shapes that belong together, labels in range.

#include <skein/core/error.hpp>
#include <skein/metrics/samples.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace skein::metrics::detail {

/// "target[3, 17]": where element i of it is.
[[nodiscard]] std::string place(std::string_view what, const array_view& of, std::size_t i);

/// target[3] is 10, which is no label of ...
[[noreturn]] void refuse_label(std::string_view what, const array_view& of, std::size_t i,
                               std::size_t classes, std::optional<std::int64_t> ignored);
/// preds[3, 1] is nan, or inf where that has no softmax.
[[noreturn]] void refuse_nan(std::string_view what, const array_view& of, std::size_t i);
[[noreturn]] void refuse_weight(const array_view& weight, std::size_t i);
/// Preds and target that do not belong together.
[[noreturn]] void refuse_shapes(const samples& shown, std::string_view wanted, std::string hint);

/// Labels: int64 or bool.
void check_labels(std::string_view what, const array_view& labels);
/// Both given, of one shape.
void check_same_shape(const samples& shown);

/// Multiclass: scores [outer, classes, inner] of labels [outer, inner]. Or labels [outer, inner].
struct class_shape {
    std::size_t outer = 0, inner = 1;
    bool scores = false;
};
[[nodiscard]] class_shape check_classes(const samples& shown, std::size_t classes);

/// Multilabel and binary: [outer, labels, inner].
struct truth_shape {
    std::size_t outer = 0, inner = 1;
};
[[nodiscard]] truth_shape check_truths(const samples& shown, std::size_t labels);

/// What each element of target counts.
class weights {
public:
    /// errc::invalid_argument for a shape that is not target's and has not its rows.
    explicit weights(const samples& shown);
    [[nodiscard]] bool given() const noexcept { return weight_.is_given(); }
    /// errc::invalid_argument for one that is negative or not finite.
    [[nodiscard]] double operator[](std::size_t i) const {
        if (!given()) return 1.0;
        const auto at = each_ == 1 ? i : i / each_;
        const double one = weight_[at];
        if (!(one >= 0.0 && one <= 1e300)) refuse_weight(weight_, at);
        return one;
    }

private:
    const array_view& weight_;
    std::size_t each_ = 1; ///< elements of target per weight
};

/// Labels as integers.
class labels {
public:
    explicit labels(const array_view& of) : wide_(of.int64()), truth_(of.boolean()) {}
    [[nodiscard]] std::int64_t operator[](std::size_t i) const noexcept {
        return wide_ != nullptr ? wide_[i] : static_cast<std::int64_t>(truth_[i]);
    }

private:
    const std::int64_t* wide_;
    const bool* truth_;
};

} // namespace skein::metrics::detail

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/shapes.ipp>
#endif

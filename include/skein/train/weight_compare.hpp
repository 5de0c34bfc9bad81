// SPDX-License-Identifier: Apache-2.0
#pragma once
// What differs between the tensors of two sources: names, types, shapes, values.
//
//     const auto found = compare_weights(*open_weights(here, "runs/a"), *open_weights(here, "runs/b"));
//     for (const auto& d : found.different) fmt::print("{}: {} elements\n", d.name, d.count);
//
// Both are read once, a few MiB at a time. Elements are compared by their bytes: 0.0 and -0.0 are
// different ones whose difference is 0, and a NaN equals the same NaN.

#include <skein/train/weight_source.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace skein::train {

/// A tensor that is not the same in both.
struct tensor_difference {
    std::string name{};
    std::optional<source_tensor> first{}, second{}; ///< nothing: it is not there
    /// Of one with the same type and shape in both: elements with other bytes.
    std::uint64_t count = 0;
    std::uint64_t elements = 0;
    /// The largest absolute difference of two elements; infinite where one alone is no number, and
    /// nothing for types that are not read as numbers.
    std::optional<double> largest{};

    [[nodiscard]] bool is_missing() const noexcept { return !first || !second; }
    [[nodiscard]] bool is_other_kind() const noexcept { return !is_missing() && *first != *second; }
};

/// What a comparison has found.
struct weight_comparison {
    std::vector<tensor_difference> different{}; ///< by name
    std::uint64_t equal = 0;                    ///< tensors
};

/// Compares all tensors of both. Throws what reading throws.
[[nodiscard]] weight_comparison compare_weights(const weight_source& first,
                                                const weight_source& second);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weight_compare.ipp>
#endif

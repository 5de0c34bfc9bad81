// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weight_compare.hpp>.

#include <skein/train/element_values.hpp>
#include <skein/train/manifest.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace skein::train {

namespace detail {

/// Adds up the elements of two blocks of the same type that differ.
SKEIN_INLINE void count_differences(byte_span a, byte_span b, tensor_difference& into) {
    const auto& dtype = into.first->dtype;
    const auto size = dtype_size(dtype).value();
    constexpr std::size_t most = 4096; // elements at once
    std::vector<double> left(most), right(most);
    for (std::size_t at = 0; at < a.size(); at += most * size) {
        const auto x = a.subspan(at, std::min(most * size, a.size() - at));
        const auto y = b.subspan(at, x.size());
        if (std::memcmp(x.data(), y.data(), x.size()) == 0) continue;
        const auto count = x.size() / size;
        if (into.largest) {
            read_values(dtype, x, std::span(left).first(count));
            read_values(dtype, y, std::span(right).first(count));
        }
        for (std::size_t i = 0; i < count; ++i) {
            if (std::memcmp(x.data() + i * size, y.data() + i * size, size) == 0) continue;
            ++into.count;
            if (!into.largest) continue;
            auto apart = left[i] == right[i] ? 0.0 : std::fabs(left[i] - right[i]);
            if (std::isnan(apart)) apart = std::numeric_limits<double>::infinity();
            into.largest = std::max(*into.largest, apart);
        }
    }
}

/// Of a tensor that has the same type and shape in both.
SKEIN_INLINE void compare_values(const weight_source& first, const weight_source& second,
                                 tensor_difference& into) {
    const auto& t = *into.first;
    if (has_values(t.dtype)) into.largest = 0.0;
    into.elements = tensor_bytes(t.dtype, t.shape).value() / dtype_size(t.dtype).value();
    const auto total = rows_of(t.shape), most = rows_at_once(t);
    byte_buffer a, b;
    for (std::int64_t row = 0; row < total; row += most) {
        const auto rows = std::min(most, total - row);
        a.resize(row_bytes(t) * static_cast<std::uint64_t>(rows));
        b.resize(a.size());
        first.read(into.name, row, rows, a);
        second.read(into.name, row, rows, b);
        count_differences(a, b, into);
    }
}

} // namespace detail

SKEIN_INLINE weight_comparison compare_weights(const weight_source& first,
                                               const weight_source& second) {
    weight_comparison out;
    const auto& theirs = second.tensors();
    for (const auto& [name, t] : first.tensors()) {
        tensor_difference found{.name = name, .first = t};
        if (const auto other = theirs.find(name); other != theirs.end())
            found.second = other->second;
        if (found.first == found.second) {
            detail::compare_values(first, second, found);
            if (found.count == 0) {
                ++out.equal;
                continue;
            }
        }
        out.different.push_back(std::move(found));
    }
    for (const auto& [name, t] : theirs)
        if (!first.tensors().contains(name)) out.different.push_back({.name = name, .second = t});
    std::ranges::sort(out.different, {}, &tensor_difference::name);
    return out;
}

} // namespace skein::train

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ranks bring to a collective, and what has to come out.

#include <skein/dist/half.hpp>
#include <skein/dist/reduce.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace collective_values {

using namespace skein;
using namespace skein::dist;

template <class T>
T number(std::int64_t x) {
    if constexpr (std::is_same_v<T, bf16_t>)
        return to_bf16(static_cast<float>(x));
    else if constexpr (std::is_same_v<T, f16_t>)
        return to_f16(static_cast<float>(x));
    else
        return static_cast<T>(x);
}

/// Integers small enough that every order of adding them is exact in every type.
inline std::int64_t value_of(int rank, std::size_t i) {
    return static_cast<std::int64_t>((static_cast<std::size_t>(rank) * 7 + i * 3 + i / 5) % 13) - 6;
}

template <class T>
T expected(reduce_op op, int n, std::size_t i) {
    std::int64_t sum = 0, most = -100, least = 100;
    for (int r = 0; r < n; ++r) {
        const auto v = value_of(r, i);
        sum += v;
        most = std::max(most, v);
        least = std::min(least, v);
    }
    if (op == reduce_op::sum) return number<T>(sum);
    if (op == reduce_op::max) return number<T>(most);
    if (op == reduce_op::min) return number<T>(least);
    if constexpr (std::is_same_v<T, bf16_t>)
        return to_bf16(static_cast<float>(sum) / static_cast<float>(n));
    else if constexpr (std::is_same_v<T, f16_t>)
        return to_f16(static_cast<float>(sum) / static_cast<float>(n));
    else
        return static_cast<T>(static_cast<T>(sum) / static_cast<T>(n));
}

} // namespace collective_values

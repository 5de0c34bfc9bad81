// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which loop a reduction runs.

#include <skein/core/check.hpp>
#include <skein/dist/detail/reduce_loops.hpp>

#include <cstring>

namespace skein::dist {

SKEIN_INLINE void reduce(void* dst, std::span<const void* const> sources, std::size_t n, dtype type,
                         reduce_op op, int divisor) noexcept {
    SKEIN_CHECK(!sources.empty() && type != dtype::u8, "a reduction needs sources and numbers");
    if (n == 0) return;
    if (sources.size() == 1 && (op != reduce_op::mean || divisor == 1)) {
        if (dst != sources[0]) std::memcpy(dst, sources[0], n * size_of(type));
        return;
    }
    SKEIN_CHECK(sources.size() >= 2, "the mean of one source with divisor {}", divisor);
    switch (type) {
    case dtype::f32:
        return detail::reduce_any_op<float>(dst, sources.data(), sources.size(), n, op, divisor);
    case dtype::bf16:
        return detail::reduce_any_op<bf16_t>(dst, sources.data(), sources.size(), n, op, divisor);
    case dtype::f64:
        return detail::reduce_any_op<double>(dst, sources.data(), sources.size(), n, op, divisor);
    case dtype::i64:
        return detail::reduce_any_op<std::int64_t>(dst, sources.data(), sources.size(), n, op,
                                                   divisor);
    case dtype::u8: return;
    }
}

SKEIN_INLINE void reduce(void* dst, const void* a, const void* b, std::size_t n, dtype type,
                         reduce_op op, int divisor) noexcept {
    const void* const sources[2] = {a, b};
    reduce(dst, sources, n, type, op, divisor);
}

} // namespace skein::dist

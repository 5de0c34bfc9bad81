// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which loop a reduction runs.

#include <skein/core/check.hpp>
#include <skein/dist/detail/reduce_loops.hpp>
#include <skein/dist/half.hpp>

#include <algorithm>
#include <cstring>

namespace skein::dist {

namespace detail {

/// reduce_wide() for any way to ask for source number s.
template <class Source>
void reduce_widened(void* dst, dtype to, std::size_t parts, Source source, std::size_t n,
                    reduce_op op, int divisor) noexcept {
    alignas(64) float sum[block], more[block]; // in the first-level cache
    for (std::size_t i = 0; i < n; i += block) {
        const std::size_t here = std::min(block, n - i);
        const auto from = [&](std::size_t s) {
            const operand o = source(s);
            return operand{static_cast<const std::byte*>(o.data) + i * size_of(o.type), o.type};
        };
        widen(sum, from(0).data, from(0).type, here);
        for (std::size_t s = 1; s < parts; ++s) {
            widen(more, from(s).data, from(s).type, here);
            const void* const both[2] = {sum, more};
            const bool last = s + 1 == parts;
            const reduce_op now = op == reduce_op::mean && !last ? reduce_op::sum : op;
            reduce_any_op<float>(sum, both, 2, here, now, divisor);
        }
        narrow(static_cast<std::byte*>(dst) + i * size_of(to), to, sum, here);
    }
}

} // namespace detail

SKEIN_INLINE void reduce_wide(void* dst, dtype to, std::span<const operand> sources, std::size_t n,
                              reduce_op op, int divisor) noexcept {
    SKEIN_CHECK(sources.size() >= 2 ||
                    (!sources.empty() && (op != reduce_op::mean || divisor == 1)),
                "{} sources with divisor {}", sources.size(), divisor);
    detail::reduce_widened(
        dst, to, sources.size(), [&](std::size_t s) { return sources[s]; }, n, op, divisor);
}

SKEIN_INLINE void reduce(void* dst, dtype to, std::span<const void* const> sources, std::size_t n,
                         dtype type, reduce_op op, int divisor) noexcept {
    if (to == type) return reduce(dst, sources, n, type, op, divisor);
    SKEIN_CHECK(sources.size() >= 2 ||
                    (!sources.empty() && (op != reduce_op::mean || divisor == 1)),
                "{} sources with divisor {}", sources.size(), divisor);
    const auto source = [&](std::size_t s) { return operand{sources[s], type}; };
    detail::reduce_widened(dst, to, sources.size(), source, n, op, divisor);
}

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
    case dtype::f16: {
        const auto source = [&](std::size_t s) { return operand{sources[s], type}; };
        return detail::reduce_widened(dst, type, sources.size(), source, n, op, divisor);
    }
    case dtype::u8: return;
    }
}

SKEIN_INLINE void reduce(void* dst, const void* a, const void* b, std::size_t n, dtype type,
                         reduce_op op, int divisor) noexcept {
    const void* const sources[2] = {a, b};
    reduce(dst, sources, n, type, op, divisor);
}

} // namespace skein::dist

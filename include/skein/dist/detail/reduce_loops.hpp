// SPDX-License-Identifier: Apache-2.0
#pragma once
// The loops of reduce(). Their order of operations is the same at every optimisation level; their
// speed needs -O2 and no -ffast-math.

#include <skein/dist/buffer.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace skein::dist {

namespace detail {

/// How an element type is stored, and the type its arithmetic is done in.
template <class T>
struct arithmetic {
    using wide = T;
    [[gnu::always_inline]] static T load(T x) noexcept { return x; }
    [[gnu::always_inline]] static T store(T x) noexcept { return x; }
};
template <>
struct arithmetic<bf16_t> {
    using wide = float;
    [[gnu::always_inline]] static float load(bf16_t x) noexcept { return to_float(x); }
    [[gnu::always_inline]] static bf16_t store(float x) noexcept { return to_bf16(x); }
};

template <reduce_op Op, class W>
[[gnu::always_inline]] inline W combine(W a, W b) noexcept {
    if constexpr (Op == reduce_op::max) {
        return (a > b || a != a) ? a : b;
    } else if constexpr (Op == reduce_op::min) {
        return (a < b || a != a) ? a : b;
    } else if constexpr (std::is_integral_v<W>) { // wraps around, as two's complement does
        using u = std::make_unsigned_t<W>;
        return static_cast<W>(static_cast<u>(a) + static_cast<u>(b));
    } else {
        return a + b;
    }
}

// One pass: dst[i] = f(a[i], b[i]). dst may be a or b. The inner loop has a constant length, so
// that g++ -O2 vectorises it as clang does; the pragmas say what the caller promises: no partial
// overlap.
inline constexpr std::size_t lanes = 32;

template <class D, class A, class B, class F>
[[gnu::always_inline]] inline void zip(D* dst, const A* a, const B* b, std::size_t n,
                                       F f) noexcept {
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        D* const d = dst + i;
        const A* const x = a + i;
        const B* const y = b + i;
#if !defined(__clang__)
#pragma GCC ivdep
#elif !__has_feature(                                                                              \
    undefined_behavior_sanitizer) // under it no loop is vectorised, with a warning each
#pragma clang loop vectorize(assume_safety)
#endif
        for (std::size_t j = 0; j < lanes; ++j) d[j] = f(x[j], y[j]);
    }
    for (; i < n; ++i) dst[i] = f(a[i], b[i]);
}

// The elements of one block are combined over all sources before the next block, so that the
// accumulator stays in the first-level cache.
inline constexpr std::size_t block = 1024;

template <class T, reduce_op Op>
[[gnu::always_inline]] inline void reduce_block(T* dst, const void* const* sources,
                                                std::size_t parts, std::size_t first, std::size_t n,
                                                int divisor) noexcept {
    using m = arithmetic<T>;
    using wide = typename m::wide;
    const auto source = [&](std::size_t s) { return static_cast<const T*>(sources[s]) + first; };
    [[maybe_unused]] const wide by = static_cast<wide>(divisor);
    const auto last = [&](wide a, wide b) __attribute__((always_inline)) {
        const wide c = combine<Op>(a, b);
        if constexpr (Op == reduce_op::mean)
            return m::store(c / by);
        else
            return m::store(c);
    };
    T* const out = dst + first;
    if (parts == 2) {
        zip(out, source(0), source(1), n,
            [&](T a, T b) __attribute__((always_inline)) { return last(m::load(a), m::load(b)); });
        return;
    }
    alignas(64) wide acc[block];
    zip(acc, source(0), source(1), n, [](T a, T b) __attribute__((always_inline)) {
        return combine<Op>(m::load(a), m::load(b));
    });
    for (std::size_t s = 2; s + 1 < parts; ++s) {
        zip(acc, acc, source(s), n,
            [](wide a, T b) __attribute__((always_inline)) { return combine<Op>(a, m::load(b)); });
    }
    zip(out, acc, source(parts - 1), n,
        [&](wide a, T b) __attribute__((always_inline)) { return last(a, m::load(b)); });
}

template <class T, reduce_op Op>
[[gnu::always_inline]] inline void reduce_all(T* dst, const void* const* sources, std::size_t parts,
                                              std::size_t n, int divisor) noexcept {
    for (std::size_t i = 0; i < n; i += block) {
        reduce_block<T, Op>(dst, sources, parts, i, std::min(block, n - i), divisor);
    }
}

template <class T, reduce_op Op>
void reduce_plain(T* dst, const void* const* sources, std::size_t parts, std::size_t n,
                  int divisor) noexcept {
    reduce_all<T, Op>(dst, sources, parts, n, divisor);
}

#if defined(__x86_64__) && !defined(__AVX2__)
// The same code with wider registers; AVX2 only, without FMA, so that nothing is contracted.
template <class T, reduce_op Op>
[[gnu::target("avx2")]] void reduce_avx2(T* dst, const void* const* sources, std::size_t parts,
                                         std::size_t n, int divisor) noexcept {
    reduce_all<T, Op>(dst, sources, parts, n, divisor);
}
[[nodiscard]] inline bool has_avx2() noexcept {
    static const bool found = __builtin_cpu_supports("avx2") != 0;
    return found;
}
#endif

template <class T, reduce_op Op>
void reduce_typed(void* dst, const void* const* sources, std::size_t parts, std::size_t n,
                  int divisor) noexcept {
#if defined(__x86_64__) && !defined(__AVX2__)
    if (has_avx2()) return reduce_avx2<T, Op>(static_cast<T*>(dst), sources, parts, n, divisor);
#endif
    reduce_plain<T, Op>(static_cast<T*>(dst), sources, parts, n, divisor);
}

template <class T>
void reduce_any_op(void* dst, const void* const* sources, std::size_t parts, std::size_t n,
                   reduce_op op, int divisor) noexcept {
    switch (op) {
    case reduce_op::sum: return reduce_typed<T, reduce_op::sum>(dst, sources, parts, n, divisor);
    case reduce_op::mean: return reduce_typed<T, reduce_op::mean>(dst, sources, parts, n, divisor);
    case reduce_op::max: return reduce_typed<T, reduce_op::max>(dst, sources, parts, n, divisor);
    case reduce_op::min: return reduce_typed<T, reduce_op::min>(dst, sources, parts, n, divisor);
    }
}

} // namespace detail

} // namespace skein::dist

// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/reduce.hpp>

#include <skein/dist/detail/reduce_loops.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace skein::dist;

namespace {

std::uint64_t next(std::uint64_t& x) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/// Any bits but NaN (whose payload is not promised).
template <class T>
std::vector<T> any_bits(std::uint64_t seed, std::size_t n) {
    std::vector<T> v(n);
    std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (auto& e : v) {
        do {
            const std::uint64_t bits = next(x);
            std::memcpy(static_cast<void*>(&e), &bits, sizeof(T));
        } while ([&] {
            if constexpr (is_half(dtype_of<T>()))
                return std::isnan(to_float(e));
            else if constexpr (std::is_floating_point_v<T>)
                return std::isnan(e);
            else
                return false;
        }());
    }
    return v;
}

template <class T>
struct plain : skein::dist::detail::arithmetic<T> {};
template <>
struct plain<f16_t> {
    using wide = float;
    static float load(f16_t x) { return to_float(x); }
    static f16_t store(float x) { return to_f16(x); }
};

/// One element the plain way, in the documented order.
template <class T>
T reference(const std::vector<std::vector<T>>& in, std::size_t i, reduce_op op) {
    using wide = typename plain<T>::wide;
    wide acc = plain<T>::load(in[0][i]);
    for (std::size_t r = 1; r < in.size(); ++r) {
        const wide x = plain<T>::load(in[r][i]);
        if (op == reduce_op::max)
            acc = acc > x ? acc : x;
        else if (op == reduce_op::min)
            acc = acc < x ? acc : x;
        else if constexpr (std::is_integral_v<wide>) {
            acc =
                static_cast<wide>(static_cast<std::uint64_t>(acc) + static_cast<std::uint64_t>(x));
        } else {
            acc += x;
        }
    }
    if (op == reduce_op::mean) acc /= static_cast<wide>(in.size());
    return plain<T>::store(acc);
}

template <class T>
bool same_bits(const T& a, const T& b) {
    if constexpr (is_half(dtype_of<T>())) {
        if (std::isnan(to_float(a)) && std::isnan(to_float(b))) return true;
    } else if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) && std::isnan(b)) return true; // inf - inf
    }
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
void check_type() {
    for (const auto op : {reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min}) {
        for (const std::size_t ranks : {2u, 3u, 5u}) {
            for (const std::size_t n : {1u, 31u, 32u, 33u, 1023u, 1024u, 1025u, 4099u}) {
                std::vector<std::vector<T>> in;
                for (std::size_t r = 0; r < ranks; ++r) in.push_back(any_bits<T>(r * 77 + n, n));
                // Into a buffer of its own, and into each of the sources.
                for (std::size_t place = 0; place <= ranks; ++place) {
                    auto work = in;
                    std::vector<T> own(n);
                    std::vector<const void*> sources;
                    for (const auto& w : work) sources.push_back(w.data());
                    T* const out = place == ranks ? own.data() : work[place].data();
                    reduce(out, sources, n, dtype_of<T>(), op, static_cast<int>(ranks));
                    std::size_t wrong = n;
                    for (std::size_t i = n; i-- > 0;) {
                        if (!same_bits(out[i], reference(in, i, op))) wrong = i;
                    }
                    INFO(to_string(dtype_of<T>())
                         << ' ' << to_string(op) << " of " << ranks << " x " << n);
                    CHECK(wrong == n);
                }
            }
        }
    }
}

} // namespace

TEST_CASE("every type and operation equals the plain loop bit for bit, also in place") {
    check_type<float>();
    check_type<double>();
    check_type<bf16_t>();
    check_type<f16_t>();
    check_type<std::int64_t>();
}

TEST_CASE("halves into float32 are added and not rounded, alone and mixed with partial sums") {
    const std::size_t n = 3001;
    const auto check = [&]<class T>(T) {
        const auto a = any_bits<T>(1, n), b = any_bits<T>(2, n), c = any_bits<T>(3, n);
        for (const auto op : {reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min}) {
            std::vector<float> wide[3] = {std::vector<float>(n), std::vector<float>(n),
                                          std::vector<float>(n)};
            for (std::size_t i = 0; i < n; ++i) {
                wide[0][i] = to_float(a[i]);
                wide[1][i] = to_float(b[i]);
                wide[2][i] = to_float(c[i]);
            }
            const void* const floats[3] = {wide[0].data(), wide[1].data(), wide[2].data()};
            std::vector<float> want(n), got(n);
            reduce(want.data(), floats, n, dtype::f32, op, 3);
            const void* const halves[3] = {a.data(), b.data(), c.data()};
            reduce(got.data(), dtype::f32, halves, n, dtype_of<T>(), op, 3);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < n; ++i) wrong += same_bits(got[i], want[i]) ? 0 : 1;
            CHECK(wrong == 0);

            // A partial sum and one more, rounded at the end, into the place of a source.
            const auto part = op == reduce_op::mean ? reduce_op::sum : op;
            reduce(got.data(), dtype::f32, std::span(halves).first(2), n, dtype_of<T>(), part, 1);
            auto out = c;
            const operand both[2] = {{got.data(), dtype::f32}, {out.data(), dtype_of<T>()}};
            reduce_wide(out.data(), dtype_of<T>(), both, n, op, 3);
            std::vector<T> rounded(n);
            reduce(rounded.data(), halves, n, dtype_of<T>(), op, 3);
            for (std::size_t i = 0; i < n; ++i) wrong += same_bits(out[i], rounded[i]) ? 0 : 1;
            CHECK(wrong == 0);
        }
    };
    check(bf16_t{});
    check(f16_t{});
}

TEST_CASE("the wide and the plain kernel give the same bits") {
#if defined(__x86_64__) && !defined(__AVX2__)
    if (!skein::dist::detail::has_avx2()) SKIP("this machine has no AVX2");
    const auto compare = []<class T>(T) {
        const auto a = any_bits<T>(1, 5000), b = any_bits<T>(2, 5000), c = any_bits<T>(3, 5000);
        const void* sources[3] = {a.data(), b.data(), c.data()};
        std::vector<T> plain(5000), wide(5000);
        skein::dist::detail::reduce_plain<T, reduce_op::mean>(plain.data(), sources, 3, 5000, 3);
        skein::dist::detail::reduce_avx2<T, reduce_op::mean>(wide.data(), sources, 3, 5000, 3);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < plain.size(); ++i)
            wrong += same_bits(plain[i], wide[i]) ? 0 : 1;
        CHECK(wrong == 0);
    };
    compare(float{});
    compare(double{});
    compare(bf16_t{});
    compare(std::int64_t{});
#else
    SKIP("there is one kernel on this machine");
#endif
}

TEST_CASE("all compilers give the same bits") {
    const auto a = any_bits<float>(5, 3000), b = any_bits<float>(6, 3000),
               c = any_bits<float>(7, 3000);
    const void* sources[3] = {a.data(), b.data(), c.data()};
    std::vector<float> out(3000);
    reduce(out.data(), sources, 3000, dtype::f32, reduce_op::mean, 3);
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const float f : out) {
        hash = (hash ^ (std::isnan(f) ? 0 : std::bit_cast<std::uint32_t>(f))) * 0x100000001b3u;
    }
    CHECK(hash == 0x1ef376e7fd0da288u); // from clang 19 and g++ 12
}

TEST_CASE("bfloat16 adds in float32 and rounds once") {
    // 256 + 1 + 1: in bfloat16 steps each 1 is lost, in float32 they count.
    const bf16_t a = to_bf16(256), b = to_bf16(1);
    const void* sources[3] = {&a, &b, &b};
    bf16_t out;
    reduce(&out, sources, 1, dtype::bf16, reduce_op::sum, 1);
    CHECK(to_float(out) == 258.0f);
}

TEST_CASE("max and min give NaN if any side is NaN") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto op = GENERATE(reduce_op::max, reduce_op::min);
    const float pairs[][2] = {{nan, 1}, {1, nan}, {nan, nan}};
    for (const auto& p : pairs) {
        float out = 0;
        reduce(&out, &p[0], &p[1], 1, dtype::f32, op, 1);
        CHECK(std::isnan(out));
    }
}

TEST_CASE("sums of integers wrap around and their mean truncates") {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max(), one = 1, minus = -4;
    std::int64_t out = 0;
    reduce(&out, &most, &one, 1, dtype::i64, reduce_op::sum, 1);
    CHECK(out == std::numeric_limits<std::int64_t>::min());
    reduce(&out, &one, &minus, 1, dtype::i64, reduce_op::mean, 2);
    CHECK(out == -1);
}

TEST_CASE("one source is copied and nothing is nothing") {
    const double x[2] = {1.5, 2.5};
    double out[2] = {};
    const void* sources[1] = {x};
    reduce(out, sources, 2, dtype::f64, reduce_op::max, 1);
    CHECK(out[1] == 2.5);
    reduce(nullptr, sources, 0, dtype::f64, reduce_op::sum, 1);
}

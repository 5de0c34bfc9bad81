// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/detail/gradient_watch.hpp>.

#include <skein/torch/torch.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/shard_layout.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace skein::train::detail {

/// Where the numbers of one loop lie; all but `grad` may be null.
struct watched_numbers {
    const float* grad;
    float *place, *before;
    const float* by; ///< what each is multiplied with

    [[nodiscard]] watched_numbers from(std::int64_t element) const {
        const auto at = [&](auto* p) { return p == nullptr ? p : p + element; };
        return {grad + element, at(place), at(before), at(by)};
    }
};

enum class watched_put : std::uint8_t { nothing, copy, add };

/// Sixteen lanes, each a sum of its own, so that the vector unit can work.
template <watched_put Puts, bool Keeps, bool Divides>
[[gnu::always_inline]] inline gradient_sums watch_loop(const watched_numbers& n,
                                                       std::int64_t count) {
    constexpr std::int64_t lanes = flat_alignment;
    double now[lanes] = {}, before[lanes] = {}, cross[lanes] = {};
    const auto* const __restrict__ grad = n.grad;
    auto* const __restrict__ place = n.place;
    auto* const __restrict__ old = n.before;
    const auto* const __restrict__ by = n.by;
    const auto one = [&](std::int64_t i, std::int64_t k) __attribute__((always_inline)) {
        const float g = grad[i];
        if constexpr (Puts == watched_put::copy) place[i] = g;
        if constexpr (Puts == watched_put::add) place[i] += g;
        const double x = Divides ? g * by[i] : g;
        now[k] += x * x;
        if constexpr (Keeps) {
            const double y = Divides ? old[i] * by[i] : old[i];
            old[i] = g;
            before[k] += y * y;
            cross[k] += x * y;
        }
    };
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
        for (std::int64_t k = 0; k < lanes; ++k) one(i + k, k);
    for (; i < count; ++i) one(i, 0);
    gradient_sums sum;
    for (std::int64_t k = 0; k < lanes; ++k) sum += {now[k], before[k], cross[k]};
    return sum;
}

template <watched_put Puts>
[[gnu::always_inline]] inline gradient_sums watch_some(const watched_numbers& n,
                                                       std::int64_t count) {
    if (n.by == nullptr)
        return n.before == nullptr ? watch_loop<Puts, false, false>(n, count)
                                   : watch_loop<Puts, true, false>(n, count);
    return n.before == nullptr ? watch_loop<Puts, false, true>(n, count)
                               : watch_loop<Puts, true, true>(n, count);
}

using watch_function = gradient_sums (*)(const watched_numbers&, std::int64_t);

template <watched_put Puts>
gradient_sums watch_plain(const watched_numbers& n, std::int64_t count) {
    return watch_some<Puts>(n, count);
}
#if defined(__x86_64__)
/// The same lanes in wider registers, and nothing fused: the same bits.
template <watched_put Puts>
[[gnu::target("avx2")]] gradient_sums watch_wide(const watched_numbers& n, std::int64_t count) {
    return watch_some<Puts>(n, count);
}
#endif

template <watched_put Puts>
watch_function watch_function_here() {
#if defined(__x86_64__)
    static const bool is_wide = __builtin_cpu_supports("avx2") != 0;
    if (is_wide) return &watch_wide<Puts>;
#endif
    return &watch_plain<Puts>;
}

/// Pieces of one length on all compute threads, added in their order.
template <watched_put Puts>
gradient_sums watch_all(const watched_numbers& n, std::int64_t count) {
    constexpr std::int64_t piece = 1 << 16;
    const auto some = watch_function_here<Puts>();
    if (count <= piece) return some(n, count);
    std::vector<gradient_sums> sums(static_cast<std::size_t>((count + piece - 1) / piece));
    at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1,
                     [&](std::int64_t first, std::int64_t last) {
                         for (auto s = first; s < last; ++s)
                             sums[static_cast<std::size_t>(s)] =
                                 some(n.from(s * piece), std::min(piece, count - s * piece));
                     });
    gradient_sums sum;
    for (const auto& each : sums) sum += each;
    return sum;
}

/// 1 / (sqrt(v) * factor + eps), 0 where v is.
struct watched_divisors {
    const float* moments;
    float* by;
    float factor, eps;
};

[[gnu::always_inline]] inline void invert_some(const watched_divisors& d, std::int64_t count) {
    const auto* const __restrict__ moments = d.moments;
    auto* const __restrict__ by = d.by;
    for (std::int64_t i = 0; i < count; ++i) {
        const float v = moments[i];
#if defined(__clang__) // the library's has errno to set, one number at a time
        const float root = __builtin_elementwise_sqrt(v);
#else
        const float root = std::sqrt(v);
#endif
        const float inverse = 1.0f / (root * d.factor + d.eps);
        by[i] = v > 0.0f ? inverse : 0.0f;
    }
}
SKEIN_INLINE void invert_plain(const watched_divisors& d, std::int64_t count) {
    invert_some(d, count);
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] SKEIN_INLINE void invert_wide(const watched_divisors& d,
                                                      std::int64_t count) {
    invert_some(d, count);
}
#endif
SKEIN_INLINE void invert_all(const watched_divisors& d, std::int64_t count) {
    auto* call = &invert_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") != 0) call = &invert_wide;
#endif
    at::parallel_for(0, count, 1 << 16, [&](std::int64_t first, std::int64_t last) {
        call({d.moments + first, d.by + first, d.factor, d.eps}, last - first);
    });
}

SKEIN_INLINE void put_gradient(at::Tensor& place, const at::Tensor& grad, bool adds) {
    if (!grad.defined())
        adds ? place.add_(0.0) : place.zero_();
    else if (!grad.is_sparse())
        adds ? place.add_(grad) : place.copy_(grad);
    else if (adds)
        place.add_(at::zeros_like(place).add_(grad));
    else
        place.zero_().add_(grad);
}

SKEIN_INLINE gradient_watch::gradient_watch(const flat_store& store,
                                            std::vector<std::size_t> group_of, std::size_t groups)
    : store_(store), group_of_(std::move(group_of)), piece_of_(group_of_.size(), nobody),
      groups_(groups), sums_(group_of_.size()) {
    for (std::size_t i = 0; i < store.pieces().size(); ++i)
        piece_of_[store.pieces()[i].segment] = i;
}

SKEIN_INLINE void gradient_watch::begin_step(gradient_divisors by, bool keeps) {
    by_ = std::move(by);
    keeps_ = keeps;
    has_inverses_.assign(by_.moments != nullptr ? sums_.size() : 0, 0);
    if (by_.moments != nullptr && !inverses_.defined())
        inverses_ = make_flat_buffer(store_.owned());
    if (!keeps)
        before_P_ = at::Tensor();
    else if (!before_P_.defined())
        before_P_ = make_flat_buffer(store_.size());
    sums_.assign(sums_.size(), {});
}

SKEIN_INLINE void gradient_watch::forget() {
    before_P_ = at::Tensor();
    keeps_ = false;
}

/// Once a step: the root costs more than all else.
SKEIN_INLINE const float* gradient_watch::inverses_of(std::size_t segment) {
    if (by_.moments == nullptr) return nullptr;
    const auto& piece = store_.pieces()[piece_of_[segment]];
    auto* const to = static_cast<float*>(inverses_.mutable_data_ptr()) + piece.at;
    if (std::exchange(has_inverses_[segment], 1) == 0)
        invert_all({by_.moments + piece.at, to, by_.factors[segment], by_.eps}, piece.count);
    return to;
}

SKEIN_INLINE void gradient_watch::put(std::size_t segment, const at::Tensor& grad,
                                      at::Tensor& place, bool adds) {
    const auto& s = store_.segments()[segment];
    if (group_of_[segment] == nobody) {
        put_gradient(place, grad, adds);
        return;
    }
    const bool is_plain = grad.defined() && !grad.is_sparse() && grad.scalar_type() == at::kFloat &&
                          place.scalar_type() == at::kFloat && grad.is_contiguous();
    watched_numbers n{};
    if (keeps_) n.before = static_cast<float*>(before_P_.mutable_data_ptr()) + s.offset;
    n.by = inverses_of(segment);
    if (is_plain) {
        n.grad = static_cast<const float*>(grad.const_data_ptr());
        n.place = static_cast<float*>(place.mutable_data_ptr());
        sums_[segment] += adds ? watch_all<watched_put::add>(n, s.count)
                               : watch_all<watched_put::copy>(n, s.count);
        return;
    }
    put_gradient(place, grad, adds);
    if (!grad.defined() && !keeps_) return;
    auto dense = !grad.defined() ? at::zeros({s.count}) : grad.is_sparse() ? grad.to_dense() : grad;
    dense = dense.to(at::kFloat).contiguous();
    n.grad = static_cast<const float*>(dense.const_data_ptr());
    sums_[segment] += watch_all<watched_put::nothing>(n, s.count);
}

SKEIN_INLINE std::vector<gradient_sums> gradient_watch::take() {
    std::vector<gradient_sums> by_group(groups_);
    for (std::size_t i = 0; i < sums_.size(); ++i)
        if (group_of_[i] != nobody) by_group[group_of_[i]] += std::exchange(sums_[i], {});
    return by_group;
}

SKEIN_INLINE std::vector<double> gradient_watch::own() {
    std::vector<double> by_group(groups_);
    for (const auto& piece : store_.pieces()) {
        const auto group = group_of_[piece.segment];
        if (group == nobody) continue;
        const auto grads = store_.own_grads(piece);
        watched_numbers n{};
        n.grad = static_cast<const float*>(grads.const_data_ptr());
        n.by = inverses_of(piece.segment);
        by_group[group] += watch_all<watched_put::nothing>(n, piece.count).now;
    }
    return by_group;
}

} // namespace skein::train::detail

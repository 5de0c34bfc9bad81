// SPDX-License-Identifier: Apache-2.0
#pragma once
// Squares of gradients, taken while the store puts them into their place: they are in the cache
// then, and not yet added to others or reduced.
//
// A store with a watch gives it each gradient of a pass (flat_store::settle), and the watch puts it
// there: one loop copies or adds it and adds its squares up in double. In which order depends on
// nothing but the parameter, so a gradient has the same number wherever it was computed.

#include <skein/torch/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace skein::train {
class flat_store;
}

namespace skein::train::detail {

/// Sums over the elements of a gradient g, and of the one before, g': each element divided by its
/// preconditioner first, where there is one.
struct gradient_sums {
    double now = 0.0;    ///< of g g
    double before = 0.0; ///< of g' g'; 0 where no copy is kept, as is
    double cross = 0.0;  ///< of g' g

    gradient_sums& operator+=(const gradient_sums& other) {
        now += other.now;
        before += other.before;
        cross += other.cross;
        return *this;
    }
};

/// What elements are divided by: sqrt(v) * factor + eps, v their second moment. An element whose v
/// is 0 counts nothing.
struct gradient_divisors {
    const float* moments = nullptr; ///< all of the store's, in the owned layout; null: by nothing
    float eps = 0.0f;
    std::vector<float> factors{}; ///< by segment
};

/// A sum has the same bits here and between ranks, where nobody knows what is zero: zeros are added,
/// too.
///   grad  undefined: zeros
void put_gradient(at::Tensor& place, const at::Tensor& grad, bool adds);

class gradient_watch {
public:
    static constexpr auto nobody = std::numeric_limits<std::size_t>::max();

    /// The store must outlive it.
    ///   group_of  by segment: the group that its squares count for, or nobody
    gradient_watch(const flat_store& store, std::vector<std::size_t> group_of, std::size_t groups);

    /// Before the first pass of a step.
    ///   keeps  each gradient of the one pass that there is is kept for the step that follows
    void begin_step(gradient_divisors by, bool keeps);
    /// Nothing is kept any more, no memory either.
    void forget();

    /// The gradient of a segment, final in its pass, comes to its place.
    ///   grad  undefined: no loss depended on it
    ///   adds  to what is there
    void put(std::size_t segment, const at::Tensor& grad, at::Tensor& place, bool adds);
    /// By group: of what has been put since the last time.
    [[nodiscard]] std::vector<gradient_sums> take();
    /// By group: squares of the gradients that the store owns, as they are now.
    [[nodiscard]] std::vector<double> own();

private:
    [[nodiscard]] const float* inverses_of(std::size_t segment);

    const flat_store& store_;
    std::vector<std::size_t> group_of_, piece_of_;
    std::size_t groups_;
    gradient_divisors by_;
    bool keeps_ = false;
    at::Tensor inverses_;             // of divisors, in the owned layout
    std::vector<char> has_inverses_;  // by segment: those of this step
    at::Tensor before_P_;             // the gradient of the step before, laid out as the parameters
    std::vector<gradient_sums> sums_; // by segment
};

} // namespace skein::train::detail

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/gradient_watch.ipp>
#endif

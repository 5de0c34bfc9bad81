// SPDX-License-Identifier: Apache-2.0
#pragma once
// How noisy gradients are, from what a step of several gradients shows anyway: the squares of each,
// and the square of their mean. From that follow what a larger batch gains, and its learning rate.
//
//     gradient_noise noise;                                   // one parameter group
//     noise.take(gradient_squares{.count = 4, .local = 2.0, .total = 0.8}, 2.0);
//     noise.gain(4.0);                  // steps of the first batch that one of four times it is worth
//
// Symbols: b0 is the first batch, B the batch of a step, s = B / b0 its scale. A step's gradient is the
// mean of M others, g_i of m_i samples each, weighted by m_i / B.
//   sources: McCandlish et al. 2018 (arXiv 1812.06162); Johnson et al. 2020 (AdaScale, ICML); Qiao et
//   al. 2021 (Pollux, OSDI), whose averages these are

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace skein::goodput {

/// What a step shows of one parameter group.
struct gradient_squares {
    int count = 0;      ///< M
    double local = 0.0; ///< mean of the squared norms of the M gradients, weighted by their samples
    double total = 0.0; ///< squared norm of their mean, weighted likewise
};

/// Of two gradients that follow each other, where a step has one alone: they are not of the same
/// weights, so the variance comes out too large. The scale is that of both together, 2 s.
///   before, now  their squared norms
///   mean         the squared norm of (before + now) / 2
[[nodiscard]] gradient_squares differenced(double before, double now, double mean) noexcept;

/// An estimate without a bias; a single one may be negative.
struct gradient_moments {
    double sqr = 1.0; ///< squared norm of the true gradient
    double var = 0.0; ///< trace of the covariance of a gradient of the first batch
};

/// (M total - local) / (M - 1) and (local - total) s / (M - 1); slices may be unequal.
///   scale   of the samples behind `total` to the first batch
///   result  nothing: fewer than two gradients, or a number that is not finite
[[nodiscard]] std::optional<gradient_moments> moments_of(const gradient_squares& step,
                                                         double scale) noexcept;

/// Steps of the first batch that one step of s times the samples is worth: 1 to s.
[[nodiscard]] double gain_of(const gradient_moments& now, double scale) noexcept;

/// Debiased moving averages of the moments, by parameter group.
class gradient_noise {
public:
    /// A variance is at least this, as a divisor needs.
    static constexpr double least_variance = 1e-6;

    /// What has to be kept to go on: plain numbers, of all groups. `weight` is what averages are
    /// divided by.
    struct memory {
        std::vector<double> sqr{}, var{};
        double weight = 0.0;
        std::uint64_t steps = 0;
        bool is_differenced = false;
    };

    ///   smoothing  of one step of the first batch; a step of scale s counts as s of them
    ///   errors     invalid_argument: no group, or a smoothing that is not between 0 and 1
    explicit gradient_noise(std::size_t groups = 1, double smoothing = 0.999);

    /// A step. The first one whose numbers are of one step alone ends what differences had said.
    ///   groups          as many as there are
    ///   is_differenced  its numbers are those of differenced()
    ///   result          false: it is left out, as some number is not finite or there was one gradient
    ///   errors          invalid_argument: another number of groups, a scale that is not positive
    bool take(std::span<const gradient_squares> groups, double scale, bool is_differenced = false);
    bool take(const gradient_squares& step, double scale, bool is_differenced = false) {
        return take(std::span(&step, 1), scale, is_differenced);
    }

    [[nodiscard]] std::size_t groups() const noexcept { return memory_.sqr.size(); }
    /// Steps that were taken; since differences were dropped.
    [[nodiscard]] std::uint64_t steps() const noexcept { return memory_.steps; }
    /// All that is known is from differences.
    [[nodiscard]] bool is_differenced() const noexcept { return memory_.is_differenced; }
    /// The averages of a group as they are; 1 and 0 before the first step.
    [[nodiscard]] gradient_moments raw(std::size_t group) const;
    /// Of a group: the square at least 0, the variance at least least_variance.
    [[nodiscard]] gradient_moments of(std::size_t group) const;
    /// Summed over the groups.
    [[nodiscard]] gradient_moments all() const;

    [[nodiscard]] double gain(double scale) const { return gain_of(all(), scale); }
    /// What a sample of such a batch is worth beside one of the first batch: gain / s, at most 1.
    [[nodiscard]] double efficiency(double scale) const { return gain(scale) / scale; }
    /// The batch, in units of the first one, at which a sample is worth about half: var / sqr.
    /// Infinite where the true gradient cannot be seen.
    [[nodiscard]] double noise_scale() const;

    [[nodiscard]] const memory& state() const noexcept { return memory_; }
    ///   errors  malformed: other groups, or numbers that no state() has
    void restore(memory saved);

private:
    memory memory_;
    double smoothing_;
};

} // namespace skein::goodput

#if SKEIN_HEADER_ONLY
#include <skein/goodput/detail/gradient_noise.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long a step takes with another number of ranks or another batch: a model with seven parameters,
// and the fit of it to what was measured.
//
//     step_times seen;
//     seen.add({.nodes = 1, .ranks = 2, .micro_batch = 32}, 0.010, 0.014);
//     const auto model = fit(seen.means());
//     model.step_seconds({.nodes = 1, .ranks = 4, .micro_batch = 64});
//
// A micro-batch of m samples takes alpha_c + beta_c m; the exchange alpha + beta max(R - 2, 0) of the
// kind of link that R ranks have; the last micro-batch and the exchange overlap as a norm of the power
// gamma: 1 is one after the other, 10 nearly the longer one.
//   source: Qiao et al. 2021 (Pollux, OSDI)

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace skein::goodput {

/// Where a step runs, and what it is made of.
struct step_shape {
    int nodes = 1, ranks = 1;      ///< ranks in all
    std::int64_t micro_batch = 1;  ///< samples of one rank that are computed at once
    std::int64_t accumulation = 0; ///< micro-batches of a rank before the last one

    /// Samples of the step.
    [[nodiscard]] std::int64_t batch() const noexcept {
        return ranks * micro_batch * (accumulation + 1);
    }
    friend bool operator==(const step_shape&, const step_shape&) = default;
};

/// The parameters, in seconds; gamma has no unit, 1 to 10.
struct step_time_model {
    double alpha_c = 0.1, beta_c = 0.01; ///< of a micro-batch: fixed; per sample
    double alpha_n = 0.1,
           beta_n = 0.01; ///< of an exchange between nodes: fixed; per rank beyond two
    double alpha_r = 0.1, beta_r = 0.01; ///< within one node
    double gamma = 1.001;

    /// A micro-batch before the last one.
    [[nodiscard]] double micro_seconds(std::int64_t micro_batch) const noexcept;
    /// The exchange by itself.
    [[nodiscard]] double sync_seconds(int nodes, int ranks) const noexcept;
    /// The last micro-batch with the exchange.
    [[nodiscard]] double last_seconds(const step_shape& step) const noexcept;
    /// All of it.
    [[nodiscard]] double step_seconds(const step_shape& step) const noexcept;
    /// Samples per second.
    [[nodiscard]] double throughput(const step_shape& step) const noexcept;
};

/// What was measured of one shape, on the average. The accumulation of the shape plays no part.
struct step_time {
    step_shape shape{};
    double micro_seconds = 0.0; ///< a micro-batch without an exchange
    double last_seconds = 0.0;  ///< the last one with it
};

/// Sums of what was measured, by nodes, ranks and samples of a micro-batch. Bounded: of a shape the
/// newest most_counted steps or so, and most_shapes shapes, those of the most steps.
class step_times {
public:
    static constexpr double most_counted = 512;
    static constexpr std::size_t most_shapes = 64;

    struct sum {
        double micro = 0.0, last = 0.0, count = 0.0;
        friend bool operator==(const sum&, const sum&) = default;
    };
    /// By nodes, ranks and samples.
    using sums = std::map<std::tuple<int, int, std::int64_t>, sum>;

    /// One step.
    ///   micro_seconds, last_seconds  as in step_time
    ///   result  false: a time is not positive or not finite (a clock jumped): it is left out
    bool add(const step_shape& shape, double micro_seconds, double last_seconds);
    /// In the order of nodes, ranks, samples.
    [[nodiscard]] std::vector<step_time> means() const;
    [[nodiscard]] bool empty() const noexcept { return sums_.empty(); }
    /// What was said of a shape is over: another machine, or another load on it.
    void forget(const step_shape& shape) {
        sums_.erase({shape.nodes, shape.ranks, shape.micro_batch});
    }
    /// The mean of its last micro-batches; 0: it was not seen.
    [[nodiscard]] double last_seconds(const step_shape& shape) const;

    [[nodiscard]] const sums& state() const noexcept { return sums_; }
    ///   errors  malformed: numbers that no state() has
    void restore(sums saved);

private:
    sums sums_;
};

/// How far a model is from what was measured: the root mean squares of the differences of logarithms of
/// both times, and small terms against a large gamma and large betas of exchanges.
///   seen  not empty
[[nodiscard]] double fit_error(const step_time_model& model, std::span<const step_time> seen);

/// The model with the least error that a search from several starts finds. What was never seen is taken
/// to be good: with one size of a micro-batch half of its time is fixed; without ranks on several nodes
/// an exchange between them takes 1.1 times as long as one within; without more than two ranks further
/// ones cost nothing. The same numbers give the same bits.
///   errors  invalid_argument: nothing was seen, or a time or shape that cannot be
[[nodiscard]] step_time_model fit(std::span<const step_time> seen);

} // namespace skein::goodput

#if SKEIN_HEADER_ONLY
#include <skein/goodput/detail/step_time.ipp>
#include <skein/goodput/detail/step_time_fit.ipp>
#endif

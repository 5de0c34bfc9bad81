// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fit of <skein/goodput/step_time.hpp>: least squares, reweighted. The error is a sum of two roots
// of mean squares and of small squares; each root is at most S / (2 w) + w / 2 with any w, and
// touches it where w is the root itself. So a step of Levenberg and Marquardt for the squares, with
// the w of where it begins, descends in the error, and does so also near the corner that a root has
// where all fits. The search works on the logarithms of the times, so that none leaves its range.

#include <skein/core/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::goodput {

namespace detail {

inline constexpr std::size_t fit_parameters = 7;
using fit_point = std::array<double, fit_parameters>; // in the order of step_time_model

SKEIN_INLINE step_time_model model_of(const fit_point& x) {
    return {x[0], x[1], x[2], x[3], x[4], x[5], x[6]};
}

/// What is squared in the error, and its slope by each parameter. Of the kinds the first two are under
/// a root of the mean each, the last is added as it is.
struct fit_term {
    double value = 0.0;
    fit_point slope{};
};
struct fit_terms {
    std::vector<fit_term> micro{}, last{}, small{};

    [[nodiscard]] static double mean_square(const std::vector<fit_term>& terms) {
        double sum = 0.0;
        for (const auto& each : terms) sum += each.value * each.value;
        return sum / static_cast<double>(terms.size());
    }
    [[nodiscard]] double error() const {
        return std::sqrt(mean_square(micro)) + std::sqrt(mean_square(last)) +
               mean_square(small) * static_cast<double>(small.size());
    }
};

SKEIN_INLINE fit_terms terms_at(const fit_point& x, std::span<const step_time> seen) {
    const auto model = model_of(x);
    const double gamma = x[6];
    fit_terms out;
    for (const auto& each : seen) {
        const auto micro = static_cast<double>(each.shape.micro_batch);
        const double compute = model.micro_seconds(each.shape.micro_batch);
        const double sync = model.sync_seconds(each.shape.nodes, each.shape.ranks);
        out.micro.push_back(
            {std::log(compute / each.micro_seconds), {1 / compute, micro / compute}});
        // log((c^g + y^g)^(1/g)) = log c + log(1 + (y/c)^g) / g, and the share of y in it. Of the two
        // times the longer one is c, so that no power is too large.
        const double ratio = std::log(sync / compute);
        const double power = std::exp(-gamma * std::abs(ratio));
        const double log_sum = std::log1p(power);
        const double share = ratio < 0 ? power / (1 + power) : 1 / (1 + power);
        auto& last = out.last.emplace_back();
        last.value = std::log(std::max(compute, sync) / each.last_seconds) + log_sum / gamma;
        last.slope[0] = (1 - share) / compute;
        last.slope[1] = last.slope[0] * micro;
        if (each.shape.ranks > 1) {
            const double more = std::max(static_cast<double>(each.shape.ranks - 2), least_seconds);
            const std::size_t link = each.shape.nodes > 1 ? 2 : 4;
            last.slope[link] = share / sync;
            last.slope[link + 1] = last.slope[link] * more;
        }
        last.slope[6] = -std::abs(ratio) * power / (1 + power) / gamma - log_sum / (gamma * gamma);
    }
    const double gamma_weight = std::sqrt(1e-3);
    out.small.push_back({gamma_weight * (gamma - 1), {}});
    out.small.back().slope[6] = gamma_weight;
    for (const std::size_t link : {std::size_t{2}, std::size_t{4}}) {
        auto& part = out.small.emplace_back();
        part.value = 0.1 * x[link + 1] / x[link];
        part.slope[link + 1] = 0.1 / x[link];
        part.slope[link] = -part.value / x[link];
    }
    return out;
}

/// Which parameters are looked for, and the values of the others.
struct fit_problem {
    std::span<const step_time> seen;
    fit_point fixed{}; // of those that are not free
    std::array<bool, fit_parameters> is_free{};
};

SKEIN_INLINE fit_problem problem_of(std::span<const step_time> seen) {
    fit_problem out{.seen = seen};
    out.is_free.fill(true);
    out.fixed.fill(least_seconds);
    const auto some = [&](auto is) { return std::ranges::any_of(seen, is); };
    const auto fix = [&](std::initializer_list<std::size_t> which) {
        for (const auto i : which) out.is_free[i] = false;
    };
    const auto first = seen[0].shape.micro_batch;
    if (!some([&](const step_time& each) { return each.shape.micro_batch != first; })) {
        double sum = 0.0;
        for (const auto& each : seen) sum += each.micro_seconds;
        out.fixed[0] = sum / static_cast<double>(seen.size()) / 2;
        fix({0});
    }
    if (!some([](const step_time& each) { return each.shape.nodes > 1; })) fix({2, 3});
    if (!some([](const step_time& e) { return e.shape.nodes == 1 && e.shape.ranks > 1; }))
        fix({4, 5});
    if (!some([](const step_time& each) { return each.shape.ranks > 2; })) fix({3, 5});
    return out;
}

// Parameters as the search sees them: the logarithm of a time over its least, gamma between its bounds.
SKEIN_INLINE double inner(std::size_t i, double x) {
    if (i < 6) return std::log(std::max(x / least_seconds, 1 + 1e-12));
    const double part = std::clamp((x - 1) / 9, 1e-9, 1 - 1e-9);
    return std::log(part / (1 - part));
}
SKEIN_INLINE double outer(std::size_t i, double u) {
    if (i < 6) return least_seconds * std::exp(std::clamp(u, 0.0, 40.0));
    return 1 + 9 / (1 + std::exp(-std::clamp(u, -30.0, 30.0)));
}
SKEIN_INLINE double outer_slope(std::size_t i, double x) {
    return i < 6 ? x : (x - 1) * (10 - x) / 9;
}

class fit_search {
public:
    fit_search(const fit_problem& problem, const fit_point& start) : problem_(&problem) {
        for (std::size_t i = 0; i < fit_parameters; ++i)
            if (problem.is_free[i]) free_.push_back(i);
        for (const auto i : free_) at_.push_back(inner(i, start[i]));
        here_ = terms_at(point(), problem.seen);
        error_ = here_.error();
    }

    /// Goes on until nothing is gained any more.
    void run(int most) {
        double damping = 1e-3;
        for (int step = 0, idle = 0; step < most && idle < 3 && damping < 1e12; ++step) {
            const double before = error_;
            const auto system = equations();
            while (damping < 1e12 && !take(system, damping)) damping *= 4;
            damping = std::max(damping / 8, 1e-15);
            idle = before - error_ <= 1e-14 * before ? idle + 1 : 0;
        }
    }

    [[nodiscard]] fit_point point() const { return point_of(at_); }
    [[nodiscard]] double error() const noexcept { return error_; }

private:
    struct linear_system {
        std::vector<double> matrix, right; // n x n, symmetric; n
    };

    [[nodiscard]] fit_point point_of(const std::vector<double>& at) const {
        auto x = problem_->fixed;
        for (std::size_t k = 0; k < free_.size(); ++k) x[free_[k]] = outer(free_[k], at[k]);
        return x;
    }

    /// Of the squares, weighted for where the search is.
    [[nodiscard]] linear_system equations() const {
        const auto n = free_.size();
        const auto x = point();
        linear_system out{std::vector<double>(n * n, 0.0), std::vector<double>(n, 0.0)};
        const auto add = [&](const std::vector<fit_term>& terms, double weight) {
            for (const auto& each : terms) {
                std::array<double, fit_parameters> slope{};
                for (std::size_t k = 0; k < n; ++k)
                    slope[k] = each.slope[free_[k]] * outer_slope(free_[k], x[free_[k]]);
                for (std::size_t k = 0; k < n; ++k) {
                    out.right[k] -= weight * each.value * slope[k];
                    for (std::size_t j = 0; j < n; ++j)
                        out.matrix[k * n + j] += weight * slope[k] * slope[j];
                }
            }
        };
        // Half of the slope of a root of a mean; a root of 0 has a corner, no slope.
        const auto of_root = [](const std::vector<fit_term>& terms) {
            const double root = std::max(std::sqrt(fit_terms::mean_square(terms)), 1e-14);
            return 0.5 / (root * static_cast<double>(terms.size()));
        };
        add(here_.micro, of_root(here_.micro));
        add(here_.last, of_root(here_.last));
        add(here_.small, 1.0);
        return out;
    }

    /// Goes where the damped system says, if the error is smaller there.
    bool take(const linear_system& system, double damping) {
        const auto n = free_.size();
        auto matrix = system.matrix;
        for (std::size_t k = 0; k < n; ++k) matrix[k * n + k] *= 1 + damping;
        for (std::size_t k = 0; k < n; ++k) matrix[k * n + k] += 1e-300;
        auto way = system.right;
        // Cholesky, in place; then both triangles.
        for (std::size_t k = 0; k < n; ++k) {
            for (std::size_t j = 0; j <= k; ++j) {
                double sum = matrix[k * n + j];
                for (std::size_t i = 0; i < j; ++i) sum -= matrix[k * n + i] * matrix[j * n + i];
                if (k == j && !(sum > 0)) return false;
                matrix[k * n + j] = k == j ? std::sqrt(sum) : sum / matrix[j * n + j];
            }
        }
        for (std::size_t k = 0; k < n; ++k) {
            for (std::size_t i = 0; i < k; ++i) way[k] -= matrix[k * n + i] * way[i];
            way[k] /= matrix[k * n + k];
        }
        for (std::size_t k = n; k-- > 0;) {
            for (std::size_t i = k + 1; i < n; ++i) way[k] -= matrix[i * n + k] * way[i];
            way[k] /= matrix[k * n + k];
        }
        auto there = at_;
        for (std::size_t k = 0; k < n; ++k) {
            there[k] += std::clamp(way[k], -4.0, 4.0); // e^4 times at most
            there[k] = inner(free_[k], outer(free_[k], there[k]));
        }
        auto found = terms_at(point_of(there), problem_->seen);
        const double value = found.error();
        if (!(value < error_)) return false;
        at_ = std::move(there);
        here_ = std::move(found);
        error_ = value;
        return true;
    }

    const fit_problem* problem_;
    std::vector<std::size_t> free_;
    std::vector<double> at_;
    fit_terms here_;
    double error_ = 0.0;
};

/// The line fixed + per x that goes through points, each counted by the inverse of its square; both at
/// least `least_seconds`. With one x all of it is fixed.
struct straight_line {
    double fixed = least_seconds, per = least_seconds;
};
SKEIN_INLINE straight_line line_through(std::span<const std::pair<double, double>> points) {
    double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
    for (const auto& [x, y] : points) {
        const double weight = 1 / std::max(y * y, 1e-30);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    straight_line out;
    if (points.empty()) return out;
    const double width = w * wxx - wx * wx;
    const double per = width > 1e-12 * w * wxx ? (w * wxy - wx * wy) / width : 0.0;
    out.per = std::max(per, least_seconds);
    out.fixed = std::max((wy - out.per * wx) / w, least_seconds);
    return out;
}

/// Where a search may begin, if gamma is so large: what the micro-batches say, and what the last ones
/// then leave for the exchange.
SKEIN_INLINE fit_point start_at(const fit_problem& problem, double gamma) {
    fit_point x = problem.fixed;
    std::vector<std::pair<double, double>> micro, within, between;
    for (const auto& each : problem.seen)
        micro.emplace_back(static_cast<double>(each.shape.micro_batch), each.micro_seconds);
    const auto compute = line_through(micro);
    if (problem.is_free[0]) {
        x[0] = compute.fixed;
        x[1] = compute.per;
    } else {
        x[1] = std::max(x[0] / micro[0].first, least_seconds);
    }
    for (const auto& each : problem.seen) {
        if (each.shape.ranks < 2) continue;
        const double rest = std::pow(each.last_seconds / each.micro_seconds, gamma) - 1;
        if (!(rest > 0)) continue;
        const double sync = each.micro_seconds * std::pow(rest, 1 / gamma);
        (each.shape.nodes > 1 ? between : within)
            .emplace_back(std::max(each.shape.ranks - 2, 0), sync);
    }
    const auto set = [&](std::size_t first, const auto& points) {
        if (!problem.is_free[first]) return;
        const auto line = line_through(points);
        x[first] = line.fixed;
        if (problem.is_free[first + 1]) x[first + 1] = line.per;
    };
    set(2, between);
    set(4, within);
    x[6] = gamma;
    return x;
}

SKEIN_INLINE void require_possible(std::span<const step_time> seen) {
    const auto refuse = [](const std::string& what) {
        throw error(errc::invalid_argument, "times of steps cannot be fitted: " + what);
    };
    if (seen.empty()) refuse("there are none");
    for (const auto& each : seen) {
        const auto& s = each.shape;
        if (s.nodes < 1 || s.ranks < s.nodes || s.micro_batch < 1)
            refuse(fmt::format("one of {} ranks on {} nodes with {} samples", s.ranks, s.nodes,
                               s.micro_batch));
        for (const double seconds : {each.micro_seconds, each.last_seconds})
            if (!(seconds > 0) || !std::isfinite(seconds))
                refuse(fmt::format("one of {} seconds", seconds));
    }
}

} // namespace detail

SKEIN_INLINE double fit_error(const step_time_model& m, std::span<const step_time> seen) {
    detail::require_possible(seen);
    return detail::terms_at(
               {m.alpha_c, m.beta_c, m.alpha_n, m.beta_n, m.alpha_r, m.beta_r, m.gamma}, seen)
        .error();
}

SKEIN_INLINE step_time_model fit(std::span<const step_time> seen) {
    detail::require_possible(seen);
    const auto problem = detail::problem_of(seen);
    std::vector<detail::fit_search> searches;
    for (const double gamma : {1.001, 1.2, 1.5, 2.0, 3.0, 4.5, 6.5, 9.0})
        searches.emplace_back(problem, detail::start_at(problem, gamma));
    // Of equal ones the smaller gamma.
    const auto by_error = [](const detail::fit_search& each) {
        return std::pair(each.error(), each.point()[6]);
    };
    for (auto& each : searches) each.run(12);
    std::ranges::sort(searches, {}, by_error);
    for (std::size_t i = 0; i < 3; ++i) searches[i].run(300);
    const auto best = std::ranges::min(searches, {}, by_error).point();
    auto model = detail::model_of(best);
    const bool is_between =
        std::ranges::any_of(seen, [](const step_time& each) { return each.shape.nodes > 1; });
    if (!is_between) {
        model.alpha_n = std::max(model.alpha_n, model.alpha_r * 1.1);
        model.beta_n = std::max(model.beta_n, model.beta_r * 1.1);
    }
    return model;
}

} // namespace skein::goodput

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A loss curve as a small SVG file: axes with round ticks, a legend, one line per series.
//
//     std::string svg = plot_svg({.title = "gpt"}, {{"train", train_points}, {"validation", val}});

#include <skein/core/config.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// One point of a curve.
struct curve_point {
    double x = 0.0; ///< step
    double y = 0.0; ///< not finite: the line has a gap there

    friend bool operator==(const curve_point&, const curve_point&) = default;
};

/// One line of a plot.
struct curve {
    std::string label{};
    std::vector<curve_point> points{}; ///< by ascending x
};

/// What a plot says beside its curves, and its size.
struct plot_options {
    std::string title{};
    std::string x_label = "step";
    std::string y_label = "loss";
    int width = 760, height = 420; ///< pixels
    std::size_t max_points = 1000; ///< per line; more are averaged in bins of equal length
};

/// About `wanted` round numbers (1, 2 or 5 times a power of ten) inside [low, high].
[[nodiscard]] std::vector<double> round_ticks(double low, double high, int wanted);

/// The whole file. Deterministic; curves without points are left out.
[[nodiscard]] std::string plot_svg(const plot_options& options, const std::vector<curve>& curves);

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/svg.ipp>
#endif

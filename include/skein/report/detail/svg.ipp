// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/svg.hpp>.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/core.h>

namespace skein::report {

SKEIN_INLINE std::vector<double> round_ticks(double low, double high, int wanted) {
    if (!(high > low) || !std::isfinite(low) || !std::isfinite(high) || wanted < 1) return {};
    const double raw = (high - low) / wanted;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    double step = 10.0 * power;
    for (double factor : {1.0, 2.0, 5.0})
        if (factor * power >= raw * 0.999) {
            step = factor * power;
            break;
        }
    std::vector<double> ticks;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1.0)
        ticks.push_back(k == 0.0 ? 0.0 : k * step);
    return ticks;
}

namespace detail {

SKEIN_INLINE std::string xml_text(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else if (static_cast<unsigned char>(c) >= 32)
            out += c;
    }
    return out;
}

/// 1500 as "1.5k", 0.25 as "0.25".
SKEIN_INLINE std::string tick_text(double value) {
    const double size = std::fabs(value);
    if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
    if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
    return fmt::format("{:.4g}", value);
}

/// At most max_points: the mean of each bin, drawn at the mean place. Bins break at gaps.
SKEIN_INLINE std::vector<curve_point> thin_out(const std::vector<curve_point>& points,
                                               std::size_t max_points) {
    if (points.size() <= max_points || max_points == 0) return points;
    const std::size_t bin = (points.size() + max_points - 1) / max_points;
    std::vector<curve_point> out;
    curve_point sum;
    std::size_t n = 0;
    auto close = [&] {
        if (n > 0) out.push_back({sum.x / static_cast<double>(n), sum.y / static_cast<double>(n)});
        sum = {};
        n = 0;
    };
    for (auto& p : points) {
        if (!std::isfinite(p.y)) {
            close();
            out.push_back(p);
            continue;
        }
        sum.x += p.x;
        sum.y += p.y;
        if (++n == bin) close();
    }
    close();
    return out;
}

// Colour-blind safe (Okabe and Ito), readable on white and on dark paper.
inline constexpr const char* line_colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                               "#e69f00"};

/// Where the lines are drawn, and which numbers lie there.
struct plot_frame {
    double left, right, top, bottom;
    double x0, x1, y0, y1;

    [[nodiscard]] double px(double x) const { return left + (x - x0) / (x1 - x0) * (right - left); }
    [[nodiscard]] double py(double y) const {
        return bottom - (y - y0) / (y1 - y0) * (bottom - top);
    }
};

/// The curves that have points, thinned out, and the frame around them.
SKEIN_INLINE plot_frame fit_frame(const plot_options& o, const std::vector<curve>& curves,
                                  std::vector<curve>& lines) {
    const double inf = std::numeric_limits<double>::infinity();
    double x0 = inf, x1 = -inf, y0 = inf, y1 = -inf;
    for (auto& c : curves) {
        lines.push_back({c.label, thin_out(c.points, o.max_points)});
        bool any = false;
        for (auto& p : lines.back().points) {
            if (!std::isfinite(p.x) || !std::isfinite(p.y)) continue;
            any = true;
            x0 = std::min(x0, p.x), x1 = std::max(x1, p.x);
            y0 = std::min(y0, p.y), y1 = std::max(y1, p.y);
        }
        if (!any) lines.pop_back();
    }
    if (lines.empty()) x0 = 0, x1 = 1, y0 = 0, y1 = 1;
    if (x1 <= x0) x0 -= 0.5, x1 += 0.5;
    if (y1 <= y0) y0 -= 0.5, y1 += 0.5;
    const double margin = (y1 - y0) * 0.06;
    y0 = y0 >= 0 && y0 < margin ? 0 : y0 - margin;
    y1 += margin;
    return {64, o.width - 20.0, o.title.empty() ? 20.0 : 44.0, o.height - 48.0, x0, x1, y0, y1};
}

/// Grid and ticks, which lie below the lines, and what the axes are called.
SKEIN_INLINE std::string svg_axes(const plot_options& o, const plot_frame& f) {
    std::string s;
    for (double t : round_ticks(f.y0, f.y1, 6))
        s += fmt::format(
            "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e6e6e6\"/>"
            "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#555555\">{}</text>\n",
            f.left, f.right, f.py(t), f.py(t), f.left - 8, f.py(t) + 4, tick_text(t));
    for (double t : round_ticks(f.x0, f.x1, 8))
        s += fmt::format(
            "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#999999\"/>"
            "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" "
            "fill=\"#555555\">{4}</text>\n",
            f.px(t), f.bottom, f.bottom + 5, f.bottom + 19, tick_text(t));
    s += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"#999999\"/>\n", f.left,
        f.top, f.bottom, f.right);
    s += fmt::format(
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>\n",
        (f.left + f.right) / 2, o.height - 10, xml_text(o.x_label));
    s += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\" "
                     "fill=\"#555555\">{}</text>\n",
                     (f.top + f.bottom) / 2, xml_text(o.y_label));
    return s;
}

SKEIN_INLINE std::string svg_line(const curve& line, const plot_frame& f, const char* colour) {
    std::string s, path;
    bool pen_down = false;
    std::size_t drawn = 0;
    for (auto& p : line.points) {
        if (!std::isfinite(p.y)) {
            pen_down = false;
            continue;
        }
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", f.px(p.x), f.py(p.y));
        pen_down = true;
        ++drawn;
    }
    if (drawn > 1)
        s += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" "
                         "stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n",
                         path, colour);
    if (drawn <= 40) // few measurements: show where they are
        for (auto& p : line.points)
            if (std::isfinite(p.y))
                s += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n",
                                 f.px(p.x), f.py(p.y), colour);
    return s;
}

/// With the last value of each, top right: a loss falls, so that corner is free.
SKEIN_INLINE std::string svg_legend(const std::vector<curve>& lines, const plot_frame& f) {
    std::size_t widest = 0;
    std::vector<std::string> labels;
    for (auto& line : lines) {
        double last = 0.0;
        for (auto& p : line.points)
            if (std::isfinite(p.y)) last = p.y;
        labels.push_back(fmt::format("{}  {:.4g}", line.label, last));
        widest = std::max(widest, labels.back().size());
    }
    std::string s;
    const double legend = f.right - 40.0 - 7.0 * static_cast<double>(widest);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const double y = f.top + 14.0 + 20.0 * static_cast<double>(i);
        s += fmt::format(
            "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
            "stroke-width=\"3\" stroke-linecap=\"round\"/>"
            "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222222\" xml:space=\"preserve\">{}</text>\n",
            legend, legend + 18, y, y, line_colours[i % std::size(line_colours)], legend + 26,
            y + 4, xml_text(labels[i]));
    }
    return s;
}

} // namespace detail

SKEIN_INLINE std::string plot_svg(const plot_options& o, const std::vector<curve>& curves) {
    std::vector<curve> lines;
    const auto f = detail::fit_frame(o, curves, lines);
    std::string s = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
                                "height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
                                "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n"
                                "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
                                o.width, o.height);
    if (!o.title.empty())
        s += fmt::format("<text x=\"{}\" y=\"26\" font-size=\"15\" font-weight=\"600\" "
                         "fill=\"#222222\">{}</text>\n",
                         f.left, detail::xml_text(o.title));
    s += detail::svg_axes(o, f);
    for (std::size_t i = 0; i < lines.size(); ++i)
        s += detail::svg_line(lines[i], f,
                              detail::line_colours[i % std::size(detail::line_colours)]);
    s += detail::svg_legend(lines, f);
    if (lines.empty())
        s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" "
                         "fill=\"#999999\">no data yet</text>\n",
                         (f.left + f.right) / 2, (f.top + f.bottom) / 2);
    return s + "</svg>\n";
}

} // namespace skein::report

// SPDX-License-Identifier: Apache-2.0
#include <skein/report/svg.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

using namespace skein::report;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;

namespace {

/// The points of the n-th line path, in pixels.
std::vector<curve_point> drawn(const std::string& svg, std::size_t n) {
    static const std::regex path(
        "<path d=\"([^\"]*)\" fill=\"none\" stroke=\"#[0-9a-f]*\" stroke-width=\"1.8\"");
    std::vector<curve_point> out;
    auto it = std::sregex_iterator(svg.begin(), svg.end(), path);
    for (; n > 0 && it != std::sregex_iterator(); --n) ++it;
    if (it == std::sregex_iterator()) return out;
    const std::string d = (*it)[1];
    static const std::regex point("[ML]([-0-9.]+) ([-0-9.]+)");
    for (auto p = std::sregex_iterator(d.begin(), d.end(), point); p != std::sregex_iterator(); ++p)
        out.push_back({std::stod((*p)[1]), std::stod((*p)[2])});
    return out;
}

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
}

} // namespace

TEST_CASE("ticks are round, inside the range and about as many as wanted") {
    CHECK(round_ticks(0.0, 100.0, 5) == std::vector<double>{0, 20, 40, 60, 80, 100});
    CHECK(round_ticks(3.0, 47.0, 5) == std::vector<double>{10, 20, 30, 40});
    CHECK(round_ticks(-1.0, 1.0, 4) == std::vector<double>{-1.0, -0.5, 0.0, 0.5, 1.0});
    for (double span : {1e-6, 0.3, 7.0, 1234.0, 1e9}) {
        const auto ticks = round_ticks(1.7, 1.7 + span, 6);
        CHECK(ticks.size() >= 2);
        CHECK(ticks.size() <= 7);
        CHECK(ticks.front() >= 1.7 - span * 1e-6);
        CHECK(ticks.back() <= 1.7 + span * (1 + 1e-6));
    }
    CHECK(round_ticks(1.0, 1.0, 5).empty());
    CHECK(round_ticks(0.0, std::numeric_limits<double>::infinity(), 5).empty());
}

TEST_CASE("points lie where axes say: inside the frame, left to right, larger values higher") {
    const auto svg = plot_svg({.title = "run"}, {{"train", {{0, 4.0}, {50, 2.0}, {100, 1.0}}}});
    const auto line = drawn(svg, 0);
    REQUIRE(line.size() == 3);
    CHECK_THAT(line[0].x, WithinAbs(64.0, 0.05));
    CHECK_THAT(line[2].x, WithinAbs(740.0, 0.05));
    CHECK_THAT(line[1].x, WithinAbs((64.0 + 740.0) / 2, 0.06));
    CHECK(line[0].y < line[1].y);
    CHECK(line[1].y < line[2].y);
    CHECK_THAT((line[1].y - line[0].y) / (line[2].y - line[1].y), WithinAbs(2.0, 0.02));
    for (auto& p : line) {
        CHECK(p.y >= 44.0);
        CHECK(p.y <= 372.0);
    }
}

TEST_CASE("train and validation get a line and a legend with the last value each") {
    const auto svg = plot_svg(
        {.title = "a < b & \"c\""},
        {{"train", {{1, 4}, {2, 3.25}}}, {"validation", {{1, 5}, {2, 3.5}}}, {"none", {}}});
    CHECK(drawn(svg, 0).size() == 2);
    CHECK(drawn(svg, 1).size() == 2);
    CHECK(drawn(svg, 2).empty());
    CHECK_THAT(svg, ContainsSubstring(">train  3.25<") && ContainsSubstring(">validation  3.5<") &&
                        !ContainsSubstring("none  "));
    CHECK_THAT(svg, ContainsSubstring("a &lt; b &amp; &quot;c&quot;"));
    CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    CHECK(svg.ends_with("</svg>\n"));
    CHECK(svg == plot_svg({.title = "a < b & \"c\""},
                          {{"train", {{1, 4}, {2, 3.25}}}, {"validation", {{1, 5}, {2, 3.5}}}}));
}

TEST_CASE("a value that is not finite is a gap, not a broken file") {
    const double nan = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();
    const auto svg =
        plot_svg({}, {{"train", {{0, 1}, {1, 2}, {2, nan}, {3, inf}, {4, 2}, {5, 1}}}});
    CHECK(drawn(svg, 0).size() == 4);
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
    const auto d = svg.substr(svg.find("<path d=\"M", svg.find("stroke=\"#999999\"/>\n<text")));
    CHECK(count(d.substr(0, d.find("fill")), "M") == 2);
}

TEST_CASE("a long run is thinned out to its means") {
    curve long_run{"train", {}};
    for (int i = 0; i < 100'000; ++i)
        long_run.points.push_back({static_cast<double>(i), i % 2 == 0 ? 0.0 : 2.0});
    const auto svg = plot_svg({}, {long_run});
    CHECK(svg.size() < 40'000);
    const auto line = drawn(svg, 0);
    CHECK(line.size() <= 1000);
    CHECK(line.size() > 500);
    for (auto& p : line) REQUIRE(std::fabs(p.y - line[0].y) < 0.2);
}

TEST_CASE("one point, equal points and no points still make a picture") {
    CHECK_THAT(plot_svg({}, {}), ContainsSubstring("no data yet"));
    CHECK_THAT(plot_svg({}, {{"train", {{3, 2.5}}}}), ContainsSubstring("<circle"));
    const auto flat = plot_svg({}, {{"train", {{3, 2.5}, {4, 2.5}}}});
    CHECK(drawn(flat, 0).size() == 2);
    CHECK(flat.find("nan") == std::string::npos);
}

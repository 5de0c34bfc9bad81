// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/load_history.hpp.

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace skein::cluster {

namespace detail {

/// Of what is known of it.
[[nodiscard]] inline load_point mean_of(std::span<const load_point> points) {
    load_point out;
    out.at = points.back().at;
    for (const auto field : {&load_point::cpu, &load_point::memory_used, &load_point::disk_used,
                             &load_point::network_receive_rate, &load_point::network_send_rate}) {
        double sum = 0;
        std::size_t count = 0;
        for (const auto& p : points) {
            if (!(p.*field >= 0)) continue;
            sum += static_cast<double>(p.*field);
            ++count;
        }
        if (count != 0) out.*field = static_cast<float>(sum / static_cast<double>(count));
    }
    return out;
}

SKEIN_INLINE std::vector<load_point> means_of(const std::vector<load_point>& points,
                                              std::uint32_t width) {
    std::vector<load_point> out;
    for (std::size_t i = 0; i < points.size();) {
        auto end = i + 1;
        while (end < points.size() && points[end].at / width == points[i].at / width) ++end;
        out.push_back(mean_of(std::span(points).subspan(i, end - i)));
        i = end;
    }
    return out;
}

} // namespace detail

SKEIN_INLINE void load_history::ring::add(const load_point& p) {
    if (points.size() < most)
        points.push_back(p);
    else
        points[std::exchange(oldest, (oldest + 1) % most)] = p;
}

SKEIN_INLINE void load_history::ring::copy(std::int64_t unix_s,
                                           std::vector<load_point>& into) const {
    std::size_t low = 0, high = points.size();
    while (low < high) {
        const auto middle = low + (high - low) / 2;
        if (at(middle).at > unix_s)
            high = middle;
        else
            low = middle + 1;
    }
    into.reserve(into.size() + points.size() - low);
    for (; low < points.size(); ++low) into.push_back(at(low));
}

SKEIN_INLINE void load_history::add(const proc::host_load& load, std::int64_t unix_s) {
    if (unix_s <= last_ || unix_s > std::numeric_limits<std::uint32_t>::max()) return;
    const auto known = [](double value, double most) { // also a host's that tells nonsense
        return value >= 0 && value <= most ? static_cast<float>(value) : -1.0F;
    };
    constexpr double exabytes = 1e20;
    load_point p;
    p.at = static_cast<std::uint32_t>(unix_s);
    p.cpu = known(load.cpu, 1);
    p.memory_used = known(load.memory_used, exabytes);
    p.disk_used = known(load.disk_used, exabytes);
    p.network_receive_rate = known(load.network_receive_rate, exabytes);
    p.network_send_rate = known(load.network_send_rate, exabytes);
    if (!open_.empty() && open_.front().at / stretch_s != p.at / stretch_s) {
        stretches_.add(detail::mean_of(open_));
        open_.clear();
    }
    open_.push_back(p);
    if (seconds_.points.size() == seconds_.most) dropped_ = seconds_.at(0).at;
    seconds_.add(p);
    last_ = unix_s;
}

SKEIN_INLINE load_curve load_history::since(std::int64_t unix_s, std::size_t most) const {
    load_curve out;
    most = std::clamp<std::size_t>(most, 1, most_points);
    // The seconds know all of it if only older ones have been dropped.
    if (dropped_ <= unix_s) {
        seconds_.copy(unix_s, out.points);
    } else {
        out.every_s = stretch_s;
        stretches_.copy(unix_s, out.points);
        if (!open_.empty()) out.points.push_back(detail::mean_of(open_));
    }
    if (out.points.size() <= most) return out;
    const auto unit = out.every_s;
    const auto span = out.points.back().at - out.points.front().at;
    auto times = std::max<std::uint32_t>(2, span / static_cast<std::uint32_t>(most) / unit);
    auto thin = detail::means_of(out.points, unit * times);
    while (thin.size() > most) thin = detail::means_of(out.points, unit * ++times);
    out.every_s = unit * times;
    out.points = std::move(thin);
    return out;
}

} // namespace skein::cluster

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/host_load.hpp.

#include <skein/core/read_number.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include <sys/statvfs.h>

namespace skein::proc {

SKEIN_INLINE host_watch::~host_watch() = default;

namespace detail {

/// What the kernel tells in one file; empty: nothing.
[[nodiscard]] inline std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

template <class F>
void each_line(std::string_view text, F each) {
    while (!text.empty()) {
        const auto end = text.find('\n');
        each(text.substr(0, end));
        text.remove_prefix(end == text.npos ? text.size() : end + 1);
    }
}

/// The numbers of a line; one that is none is where it ends.
[[nodiscard]] inline std::vector<double> numbers_of(std::string_view line) {
    std::vector<double> out;
    while (true) {
        const auto first = line.find_first_not_of(" \t");
        if (first == line.npos) return out;
        line.remove_prefix(first);
        const auto word = line.substr(0, line.find_first_of(" \t"));
        const auto value = read_double(word);
        if (!value || !(*value >= 0)) return out;
        out.push_back(*value);
        line.remove_prefix(word.size());
    }
}

SKEIN_INLINE processor_ticks read_ticks(const std::string& stat) {
    processor_ticks out;
    each_line(stat, [&](std::string_view line) {
        if (!line.starts_with("cpu ") || out.busy >= 0) return;
        // user nice system idle iowait irq softirq steal; guests are in user already
        const auto all = numbers_of(line.substr(4));
        if (all.size() < 4) return;
        out.busy = 0;
        for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 8); ++i) {
            out.all += all[i];
            if (i != 3 && i != 4) out.busy += all[i];
        }
    });
    return out;
}

SKEIN_INLINE void read_memory(const std::string& meminfo, host_load& into) {
    double total = -1, available = -1;
    each_line(meminfo, [&](std::string_view line) {
        for (auto [name, value] : {std::pair{std::string_view("MemTotal:"), &total},
                                   std::pair{std::string_view("MemAvailable:"), &available}})
            if (line.starts_with(name))
                if (const auto n = numbers_of(line.substr(name.size())); !n.empty())
                    *value = n[0] * 1024;
    });
    if (total <= 0 || available < 0) return;
    into.memory_total = total;
    into.memory_used = std::max(0.0, total - available);
}

/// Whether all of its bytes come by another interface, too, or never leave this host.
[[nodiscard]] inline bool is_virtual(std::string_view interface) {
    constexpr std::array<std::string_view, 9> begins{"veth", "docker",  "br-", "virbr", "cni",
                                                     "cali", "flannel", "tap", "lxc"};
    return interface == "lo" || std::any_of(begins.begin(), begins.end(),
                                            [&](auto b) { return interface.starts_with(b); });
}

SKEIN_INLINE void read_network(const std::string& dev, host_load& into) {
    double received = 0, sent = 0;
    bool is_there = false;
    each_line(dev, [&](std::string_view line) {
        const auto colon = line.find(':');
        if (colon == line.npos) return;
        auto name = line.substr(0, colon);
        name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
        const auto all = numbers_of(line.substr(colon + 1)); // bytes are the 1st and the 9th
        if (all.size() < 9) return;
        is_there = true;
        if (is_virtual(name)) return;
        received += all[0];
        sent += all[8];
    });
    if (!is_there) return;
    into.network_received = received;
    into.network_sent = sent;
}

} // namespace detail

SKEIN_INLINE host_load local_host::sample(time_point now) {
    host_load out;
    const auto ticks = detail::read_ticks(detail::text_of(proc_ + "/stat"));
    if (busy_ >= 0 && ticks.busy >= 0 && ticks.all > all_)
        out.cpu = std::clamp((ticks.busy - busy_) / (ticks.all - all_), 0.0, 1.0);
    busy_ = ticks.busy;
    all_ = ticks.all;
    detail::read_memory(detail::text_of(proc_ + "/meminfo"), out);
    detail::read_network(detail::text_of(proc_ + "/net/dev"), out);
    const auto seconds = std::chrono::duration<double>(now - last_).count();
    const auto rate = [&](double before, double after) {
        return before < 0 || after < before || seconds <= 0 ? -1 : (after - before) / seconds;
    };
    out.network_receive_rate = rate(received_, out.network_received);
    out.network_send_rate = rate(sent_, out.network_sent);
    received_ = out.network_received;
    sent_ = out.network_sent;
    last_ = now;
    struct statvfs disk{};
    if (!disk_.empty() && ::statvfs(disk_.c_str(), &disk) == 0) {
        const auto block = static_cast<double>(disk.f_frsize);
        out.disk_total = static_cast<double>(disk.f_blocks) * block;
        out.disk_used = out.disk_total - static_cast<double>(disk.f_bfree) * block;
    }
    return out;
}

} // namespace skein::proc

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/available_cores.hpp.

#include <skein/core/read_number.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein {

namespace detail {

/// quota / period of one cgroup in microseconds; infinite: no quota, or no such file.
SKEIN_INLINE double cgroup_quota(const std::string& folder) {
    std::string quota;
    double period = 0;
    if (std::ifstream v2(folder + "/cpu.max"); !(v2 >> quota >> period)) {
        std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    const double part = read_double(quota).value_or(-1); // "max": none
    return part > 0 && period > 0 ? part / period : std::numeric_limits<double>::infinity();
}

SKEIN_INLINE std::vector<std::string> cgroup_folders(const cgroup_files& where,
                                                     std::string_view controller) {
    std::vector<std::string> folders;
    const auto listed = fmt::format(",{},", controller);
    // A line is number:controllers:path; version 2 has one, with no controllers.
    std::ifstream membership(where.membership);
    for (std::string line; std::getline(membership, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == line.npos || second == line.npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (!controllers.empty() && ("," + controllers + ",").find(listed) == line.npos) continue;
        // The folder of version 1 is "cpu" or has the names of all its controllers. Every group
        // above has its say; inside a container the path may be the host's, which is not there.
        for (const auto& root : {where.root, where.root + "/" + controllers,
                                 fmt::format("{}/{}", where.root, controller)}) {
            std::string path = line.substr(second + 1);
            while (true) {
                folders.push_back(root + path);
                const auto slash = path.rfind('/');
                if (slash == path.npos) break;
                path.resize(slash);
            }
        }
    }
    return folders;
}

SKEIN_INLINE int cgroup_cores(const cgroup_files& where) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& folder : cgroup_folders(where, "cpu"))
        least = std::min(least, cgroup_quota(folder));
    if (!std::isfinite(least)) return 0;
    return std::max(1, static_cast<int>(std::ceil(std::min(least, 1e6))));
}

SKEIN_INLINE int cgroup_cpuset(const cgroup_files& where) {
    std::ifstream file(where.root + "/cpuset.cpus.effective");
    int cores = 0, first = 0;
    while (file >> first) {
        int last = first;
        if (file.peek() == '-' && !(file.ignore() >> last)) return 0;
        if (last < first) return 0;
        cores += last - first + 1;
        if (file.peek() == ',') file.ignore();
    }
    return cores;
}

} // namespace detail

SKEIN_INLINE int available_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = ::sched_getaffinity(0, sizeof set, &set) == 0
                    ? CPU_COUNT(&set)
                    : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); // more than 1,024
    cores = std::max(1, cores);
    const int quota = detail::cgroup_cores({});
    return quota > 0 ? std::min(cores, quota) : cores;
}

} // namespace skein

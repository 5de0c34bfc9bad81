// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/available_memory.hpp.

#include <algorithm>
#include <fstream>
#include <limits>

namespace skein {

namespace detail {

SKEIN_INLINE std::uint64_t cgroup_memory(const cgroup_files& where) {
    constexpr auto none = std::numeric_limits<std::uint64_t>::max();
    // Version 1 has no word for "no limit": it says the greatest multiple of a page.
    constexpr auto absurd = std::uint64_t{1} << 62;
    std::uint64_t least = none;
    for (const auto& folder : cgroup_folders(where, "memory")) {
        // A process above memory.high is held up until it is hardly moving: that is a limit, too.
        for (const char* file : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
            std::uint64_t bytes = 0;
            if (std::ifstream(folder + file) >> bytes && bytes < absurd)
                least = std::min(least, bytes); // "max" is no number
        }
    }
    return least == none ? 0 : std::max<std::uint64_t>(least, 1);
}

SKEIN_INLINE std::uint64_t total_memory(const std::string& meminfo) {
    std::ifstream file(meminfo);
    for (std::string name, line; file >> name; std::getline(file, line)) {
        std::uint64_t kilobytes = 0;
        if (name == "MemTotal:" && file >> kilobytes) return kilobytes << 10;
    }
    return 0;
}

SKEIN_INLINE std::uint64_t available_memory(const cgroup_files& where, const std::string& meminfo) {
    const std::uint64_t machine = total_memory(meminfo), group = cgroup_memory(where);
    if (machine == 0 || group == 0) return std::max(machine, group);
    return std::min(machine, group);
}

} // namespace detail

SKEIN_INLINE std::uint64_t available_memory() {
    return detail::available_memory({}, "/proc/meminfo");
}

} // namespace skein

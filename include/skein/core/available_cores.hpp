// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many cores this process may use, which in a container is fewer than the machine has.

#include <skein/core/config.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace skein {

/// The cores that the process may run on (taskset, cpusets), and no more than the quota of its
/// cgroups (docker --cpus, Kubernetes limits), rounded up; at least 1. Reads files: ask once.
[[nodiscard]] int available_cores();

namespace detail {

/// Where Linux tells of cgroups.
struct cgroup_files {
    std::string membership = "/proc/self/cgroup";
    std::string root = "/sys/fs/cgroup";
};
/// The folders of the cgroups that the process is in and of all groups above them, of version 2 or
/// of a controller ("cpu", "memory") of version 1. Some may not be there.
[[nodiscard]] std::vector<std::string> cgroup_folders(const cgroup_files& where,
                                                      std::string_view controller);
/// The quota in cores, rounded up, of version 1 or 2; 0: there is none.
[[nodiscard]] int cgroup_cores(const cgroup_files& where);
/// The cores of this host or container, as its topmost cgroup lists them ("0-3,8"); 0: it does not.
[[nodiscard]] int cgroup_cpuset(const cgroup_files& where);

} // namespace detail
} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/available_cores.ipp>
#endif

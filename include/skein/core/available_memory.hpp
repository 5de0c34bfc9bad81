// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory this process may use, which in a container is less than the machine has.

#include <skein/core/available_cores.hpp>

#include <cstdint>
#include <string>

namespace skein {

/// The bytes of the machine's memory, and no more than the limits of the process's cgroups (docker
/// --memory, Kubernetes limits), used or not; 0: nobody tells. Reads files: ask once.
[[nodiscard]] std::uint64_t available_memory();

namespace detail {

/// The least limit in bytes, of version 1 or 2; 0: there is none.
[[nodiscard]] std::uint64_t cgroup_memory(const cgroup_files& where);
/// MemTotal of a file like /proc/meminfo in bytes; 0: it does not say.
[[nodiscard]] std::uint64_t total_memory(const std::string& meminfo);
/// The lesser of both.
[[nodiscard]] std::uint64_t available_memory(const cgroup_files& where, const std::string& meminfo);

} // namespace detail
} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/available_memory.ipp>
#endif

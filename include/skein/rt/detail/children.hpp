// SPDX-License-Identifier: Apache-2.0
#pragma once
// What other worlds' children share with rt/detail/children.ipp.

#include <cstdint>

namespace skein::rt {

struct child_options;
struct process_usage;

namespace detail {

///   errors  too_large: the boot message
void check_boot_size(const child_options& how);

/// What Linux tells of a process; zeros if there is no such process.
[[nodiscard]] process_usage usage_of(std::int64_t pid);

} // namespace detail
} // namespace skein::rt

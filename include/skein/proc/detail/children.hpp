// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests look at of proc/detail/children.ipp.

#include <cstdint>

namespace skein::proc {

struct process_usage;

namespace detail {

/// What Linux tells of a process; zeros if there is no such process.
[[nodiscard]] process_usage usage_of(std::int64_t pid);

} // namespace detail
} // namespace skein::proc

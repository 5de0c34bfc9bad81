// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/metric.hpp>.

#include <fmt/core.h>

namespace skein::metrics::detail {

SKEIN_INLINE std::string option_text(bool value) { return value ? "true" : "false"; }
SKEIN_INLINE std::string option_text(std::int64_t value) { return fmt::format("{}", value); }
SKEIN_INLINE std::string option_text(double value) { return fmt::format("{}", value); }
SKEIN_INLINE std::string option_text(std::string_view value) { return std::string(value); }

} // namespace skein::metrics::detail

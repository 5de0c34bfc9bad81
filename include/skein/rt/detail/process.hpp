// SPDX-License-Identifier: Apache-2.0
#pragma once
// What other bodies need of rt/detail/process.ipp.

#include <skein/core/error.hpp>

#include <string_view>

namespace skein::rt::detail {

/// What spawn() throws. Running out of descriptors has a limit with a name.
[[nodiscard]] error cannot_start(std::string_view executable, std::string_view step, int number);

} // namespace skein::rt::detail

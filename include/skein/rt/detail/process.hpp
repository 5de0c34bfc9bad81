// SPDX-License-Identifier: Apache-2.0
#pragma once
// What other bodies need of rt/detail/process.ipp.

#include <skein/core/error.hpp>

#include <string_view>

namespace skein::rt::detail {

/// What spawn() throws. Running out of descriptors has a limit with a name.
[[nodiscard]] error cannot_start(std::string_view executable, std::string_view step, int number);

/// The pipe for leave_last_words(), or -1. Takes its variable out of the environment and makes it
/// close-on-exec at the first call.
int adopt_last_words() noexcept;

} // namespace skein::rt::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether this program's head answers browsers: it does where it was built with Boost.

#include <skein/program/program.hpp>

namespace skein_program {

/// What program::head_program::web is to be; empty: no head of this program answers browsers.
[[nodiscard]] decltype(skein::program::head_program::web) web_of_this_program();

} // namespace skein_program

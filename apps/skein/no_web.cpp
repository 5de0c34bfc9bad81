// SPDX-License-Identifier: Apache-2.0
// web.hpp of a build without Boost.
#include "web.hpp"

namespace skein_program {

decltype(skein::program::head_program::web) web_of_this_program() { return {}; }

} // namespace skein_program

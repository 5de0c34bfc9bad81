// SPDX-License-Identifier: Apache-2.0
// web.hpp of a build with Boost.
#include "web.hpp"

#include "dashboard.hpp"

namespace skein_program {

decltype(skein::program::head_program::web) web_of_this_program() { return &make_dashboard; }

} // namespace skein_program

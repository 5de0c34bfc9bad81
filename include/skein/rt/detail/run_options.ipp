// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of rt/run_options.hpp.

#include <skein/rt/runtime.hpp>
#include <skein/rt/standard_files.hpp>

namespace skein {

SKEIN_INLINE void serve_if_worker() {
    rt::open_standard_files();
    // A task of a worker may be a driver of its own: it has a runtime.
    if (rt::is_worker() && rt::runtime::try_current() == nullptr) rt::detail::live_as_worker();
}

} // namespace skein

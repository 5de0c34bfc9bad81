// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/time.hpp.

#include <skein/core/error.hpp>

namespace skein::detail {

SKEIN_INLINE void refuse_no_number() {
    throw error(errc::invalid_argument, "a length of time is no number (NaN)")
        .with_hint("look at what it is computed from; for ever is skein::duration::max()");
}

} // namespace skein::detail

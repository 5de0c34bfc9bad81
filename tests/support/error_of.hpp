// SPDX-License-Identifier: Apache-2.0
#pragma once
// The error that a call throws, to look at its code, text and hint.

#include <skein/core/error.hpp>

namespace skein::test {

/// errc::unknown: it threw none.
template <class F>
error error_of(F call) {
    try {
        call();
    } catch (const error& why) {
        return why;
    }
    return error(errc::unknown, "nothing was thrown");
}

} // namespace skein::test

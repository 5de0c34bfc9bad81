// SPDX-License-Identifier: Apache-2.0
#pragma once
// A claim checked on the thread of a rank, where Catch2's macros must not be used.

#include <skein/core/error.hpp>

#include <source_location>
#include <string>

namespace skein::test {

/// Throws when the claim is false; the test's own thread finds it among the ranks' errors.
inline void expect(bool claim, std::source_location where = std::source_location::current()) {
    if (!claim)
        throw error(errc::unknown,
                    "a rank found something else in line " + std::to_string(where.line()));
}

} // namespace skein::test

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a fuzz target asks of what it has read: a promise that is broken ends the process, which is
// what the fuzzer looks for.

#include <cstdio>
#include <cstdlib>

namespace fuzz {

inline void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

} // namespace fuzz

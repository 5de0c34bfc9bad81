// SPDX-License-Identifier: Apache-2.0
// A scope runs tasks without a value; a value nobody can fetch is a mistake (use all()).
// expect: task<void>
#include <skein/core/scope.hpp>

skein::task<int> one() { co_return 1; }
skein::task<void> none() { co_return; }

void use(skein::scope& s) {
#if defined(SKEIN_COMPILES)
    s.spawn(none());
#else
    s.spawn(one());
#endif
}

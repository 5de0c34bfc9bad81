// SPDX-License-Identifier: Apache-2.0
// A task owns its frame and is awaited once: it moves, it is never copied.
// expect: deleted
#include <skein/core/task.hpp>

skein::task<int> one() { co_return 1; }

void use() {
    auto t = one();
#if defined(SKEIN_COMPILES)
    auto other = std::move(t);
#else
    auto other = t;
#endif
    (void)other;
}

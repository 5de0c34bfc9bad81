// SPDX-License-Identifier: Apache-2.0
// unique_function may hold what cannot be copied, so it cannot be copied itself.
// expect: deleted
#include <skein/core/function.hpp>

void use() {
    skein::unique_function<void()> f = [] {};
#if defined(SKEIN_COMPILES)
    auto g = std::move(f);
#else
    auto g = f;
#endif
    g();
}

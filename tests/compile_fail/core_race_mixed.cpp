// SPDX-License-Identifier: Apache-2.0
// A race has one kind of result.
// expect: race
#include <skein/core/race.hpp>

#include <string>

skein::task<int> number() { co_return 1; }
skein::task<std::string> text() { co_return "x"; }

void use() {
#if defined(SKEIN_COMPILES)
    auto r = skein::race(number(), number());
#else
    auto r = skein::race(number(), text());
#endif
    (void)r;
}

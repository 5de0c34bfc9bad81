// SPDX-License-Identifier: Apache-2.0
// expect: a stream has many values: while (auto item = co_await s.next())
#include <skein/rt/stream.hpp>

skein::generator<int> some(int x) { co_yield x; }
skein::task<void> f() {
    auto s = skein::stream<&some>(1);
    co_await s;
}

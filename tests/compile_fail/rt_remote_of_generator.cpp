// SPDX-License-Identifier: Apache-2.0
// expect: this function gives a generator: auto items = skein::stream<&f>(args...)
#include <skein/rt/stream.hpp>

skein::generator<int> some(int x) { co_yield x; }
auto f() { return skein::remote<&some>(1); }

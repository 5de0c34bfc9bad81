// SPDX-License-Identifier: Apache-2.0
// expect: this function gives no generator<T>, and so no items
#include <skein/rt/stream.hpp>

int one(int x) { return x; }
auto f() { return skein::stream<&one>(1); }

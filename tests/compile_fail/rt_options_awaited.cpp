// SPDX-License-Identifier: Apache-2.0
// expect: skein: this is a function with options, not a call
#include <skein/rt/remote.hpp>

int twice(int x) { return 2 * x; }

skein::task<void> use() { co_await skein::remote<&twice>.with({.cpus = 2}); }

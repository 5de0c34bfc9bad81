// SPDX-License-Identifier: Apache-2.0
// expect: skein: a ref has no get()
#include <skein/rt/remote.hpp>

int twice(int x) { return 2 * x; }

int use() { return skein::remote<&twice>(1).get(); }

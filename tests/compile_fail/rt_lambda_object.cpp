// SPDX-License-Identifier: Apache-2.0
// expect: skein: remote<> takes the address of a function
#include <skein/rt/remote.hpp>

void use() {
    (void)skein::remote<[](int v) { return v + 1; }>(3);
}

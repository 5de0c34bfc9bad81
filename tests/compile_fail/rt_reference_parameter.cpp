// SPDX-License-Identifier: Apache-2.0
// [A5] of docs/semantics.md
// expect: skein: a remote function cannot take a non-const reference
#include <skein/rt/remote.hpp>

void fill(int& out) { out = 1; }

void use() {
    int x = 0;
    skein::remote<&fill>(x);
}

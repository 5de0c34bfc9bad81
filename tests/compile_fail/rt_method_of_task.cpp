// SPDX-License-Identifier: Apache-2.0
// expect: skein: a method is called through its actor: handle.call
#include <skein/rt/actor.hpp>

struct counter {
    int n = 0;
    int add(int k) { return n += k; }
};

void use() { skein::remote<&counter::add>(skein::actor<counter>(10), 3); }

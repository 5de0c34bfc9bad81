// SPDX-License-Identifier: Apache-2.0
// expect: skein: this is a task that gives a handle, not the handle
#include <skein/rt/actor.hpp>

struct counter {
    int n = 0;
    int add(int k) { return n += k; }
};

void use() {
    auto c = skein::actor<counter>(10);
    c.call<&counter::add>(3);
}

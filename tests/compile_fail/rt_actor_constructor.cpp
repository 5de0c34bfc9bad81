// SPDX-License-Identifier: Apache-2.0
// expect: skein: the actor cannot be made from these arguments
#include <skein/rt/actor.hpp>

#include <string>

struct counter {
    int n = 0;
    int get() { return n; }
};

skein::task<void> use() {
    auto made = skein::actor<counter>(std::string("ten"));
    auto c = co_await made;
    (void)c;
}

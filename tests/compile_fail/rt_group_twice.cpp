// SPDX-License-Identifier: Apache-2.0
// expect: skein: a method is in two method_groups, or twice in one
#include <skein/rt/actor.hpp>

struct store {
    int n = 0;
    skein::task<int> read() { co_return n; }
    skein::task<int> list() { co_return n; }
    using concurrency_groups =
        skein::method_groups<skein::method_group<"io", 8, &store::read, &store::list>,
                             skein::method_group<"slow", 1, &store::list>>;
};

void make() { (void)skein::actor<store>(); }

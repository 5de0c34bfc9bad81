// SPDX-License-Identifier: Apache-2.0
// expect: skein: two method_groups of an actor type have the same name
#include <skein/rt/actor.hpp>

struct store {
    int n = 0;
    skein::task<int> read() { co_return n; }
    skein::task<int> list() { co_return n; }
    using concurrency_groups = skein::method_groups<skein::method_group<"io", 8, &store::read>,
                                                    skein::method_group<"io", 1, &store::list>>;
};

void make() { (void)skein::actor<store>(); }

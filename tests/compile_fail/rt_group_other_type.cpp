// SPDX-License-Identifier: Apache-2.0
// expect: skein: a method_group names a method that is not one of the actor's own type
#include <skein/rt/actor.hpp>

struct cache {
    int n = 0;
    skein::task<int> read() { co_return n; }
};
struct store {
    int n = 0;
    using concurrency_groups = skein::method_groups<skein::method_group<"io", 8, &cache::read>>;
};

void make() { (void)skein::actor<store>(); }

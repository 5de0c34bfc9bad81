// SPDX-License-Identifier: Apache-2.0
// expect: skein: the bound of a method_group must be at least 1
#include <skein/rt/actor.hpp>

struct store {
    int n = 0;
    skein::task<int> read() { co_return n; }
    using concurrency_groups = skein::method_groups<skein::method_group<"io", 0, &store::read>>;
};

void use(skein::actor_handle<store> h) { (void)h.call<&store::read>(); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: a blocking_group takes plain methods
#include <skein/rt/actor.hpp>

struct store {
    int n = 0;
    skein::task<int> read() { co_return n; }
    using concurrency_groups = skein::method_groups<skein::blocking_group<"io", 2, &store::read>>;
};

void use(skein::actor_handle<store> h) { (void)h.call<&store::read>(); }

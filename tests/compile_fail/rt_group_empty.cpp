// SPDX-License-Identifier: Apache-2.0
// expect: skein: a method_group without methods bounds nothing
#include <skein/rt/actor.hpp>

struct store {
    int n = 0;
    skein::task<int> read() { co_return n; }
    using concurrency_groups = skein::method_groups<skein::method_group<"io", 8>>;
};

void make() { (void)skein::actor<store>(); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: an actor lives in another process: handle.call
#include <skein/rt/actor.hpp>

struct counter {
    int n = 0;
    int add(int k) { return n += k; }
    int get() const { return n; }
};

int use(const skein::actor_handle<counter>& c) { return c->get(); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: call<&T::m> needs a member function of the actor's own type
#include <skein/rt/actor.hpp>

struct counter {
    int n = 0;
    int add(int k) { return n += k; }
};
struct other {
    int n = 0;
};

void use(skein::actor_handle<other> h) { (void)h.call<&counter::add>(1); }

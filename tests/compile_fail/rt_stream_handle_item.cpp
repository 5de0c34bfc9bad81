// SPDX-License-Identifier: Apache-2.0
// expect: items of a stream with an actor_handle, a ref or a placement_group in them
#include <skein/rt/stream.hpp>

struct counter {
    int n = 0;
};
skein::generator<skein::actor_handle<counter>> some(int) { co_return; }
auto f() { return skein::stream<&some>(1); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: a method of a blocking_group cannot take an actor_handle or a placement_group
#include <skein/rt/actor.hpp>
#include <skein/rt/placement_group.hpp>

#include <vector>

struct store {
    int read(std::vector<skein::placement_group> all) { return static_cast<int>(all.size()); }
    using concurrency_groups = skein::method_groups<skein::blocking_group<"io", 2, &store::read>>;
};

void use(skein::actor_handle<store> h) {
    (void)h.call<&store::read>(std::vector<skein::placement_group>());
}

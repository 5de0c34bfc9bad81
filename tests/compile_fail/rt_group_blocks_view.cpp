// SPDX-License-Identifier: Apache-2.0
// expect: skein: a method of a blocking_group cannot take a span or string_view
#include <skein/rt/actor.hpp>

#include <string_view>

struct store {
    int read(std::string_view name) { return static_cast<int>(name.size()); }
    using concurrency_groups = skein::method_groups<skein::blocking_group<"io", 2, &store::read>>;
};

void use(skein::actor_handle<store> h) { (void)h.call<&store::read>("a"); }

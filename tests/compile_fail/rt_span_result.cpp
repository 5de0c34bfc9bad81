// SPDX-License-Identifier: Apache-2.0
// [A6] of docs/semantics.md
// expect: skein: a remote function cannot return a span or string_view
#include <skein/rt/actor.hpp>

#include <span>
#include <vector>

struct shard {
#if defined(SKEIN_COMPILES)
    std::vector<float> row(int) { return {}; }
#else
    std::span<const float> row(int) { return {}; }
#endif
};

void use(const skein::actor_handle<shard>& s) { (void)s.call<&shard::row>(7); }

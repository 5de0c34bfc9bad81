// SPDX-License-Identifier: Apache-2.0
// An actor id is not a node id.
// expect: node_tag
#include <skein/core/ids.hpp>

void place(skein::node_id);

void use() {
#if defined(SKEIN_COMPILES)
    place(skein::node_id(1));
#else
    place(skein::actor_id(1));
#endif
}

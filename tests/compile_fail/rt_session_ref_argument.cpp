// SPDX-License-Identifier: Apache-2.0
// expect: skein: a ref, an actor_handle or a placement_group belongs to the loop it was made on
#include <skein/program/session.hpp>

int twice(int x) { return 2 * x; }

void use(skein::session& s, skein::ref<int> r) { (void)s.submit<&twice>(r); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: wrong number of arguments for this remote function
#include <skein/rt/remote.hpp>

int load(int shard) { return shard; }

void use() { (void)skein::remote<&load>(1, 2); }

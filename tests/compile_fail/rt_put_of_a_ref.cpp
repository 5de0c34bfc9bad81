// SPDX-License-Identifier: Apache-2.0
// expect: skein: not supported: a remote function that takes a ref<T>
#include <skein/rt/remote.hpp>

int load(int shard) { return shard; }
int peek(skein::ref<int> r) { return r.ready(); }

void use() { (void)skein::remote<&peek>(skein::remote<&load>(1)); }

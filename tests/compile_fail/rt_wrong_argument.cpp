// SPDX-License-Identifier: Apache-2.0
// expect: skein: an argument must be of the parameter's type, convertible to it, or a ref to such a value
#include <skein/rt/remote.hpp>

#include <string>

int load(int shard) { return shard; }

void use() { (void)skein::remote<&load>(std::string("seven")); }

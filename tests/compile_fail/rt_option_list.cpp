// SPDX-License-Identifier: Apache-2.0
// expect: skein: an option takes one text, not a list in braces
#include <skein/rt/remote.hpp>

long square(long a) { return a * a; }

void use() { (void)skein::remote<&square>.with({.resources = {"ssd", 1}})(3); }

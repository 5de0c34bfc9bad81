// SPDX-License-Identifier: Apache-2.0
// expect: skein: .on takes a place, not a text: skein::label
#include <skein/rt/remote.hpp>

long square(long a) { return a * a; }

void use() { (void)skein::remote<&square>.with({.on = "zone=a"})(3); }

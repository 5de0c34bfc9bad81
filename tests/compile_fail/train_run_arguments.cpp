// SPDX-License-Identifier: Apache-2.0
// expect: skein: the arguments of run<&loop>(config, args...) must be those of the loop
#include <skein/train/run.hpp>

void loop(skein::train::context&, int steps) { (void)steps; }

void use() { (void)skein::train::run<&loop>({}, "ten"); }

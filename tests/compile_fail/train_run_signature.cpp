// SPDX-License-Identifier: Apache-2.0
// expect: skein: run<&loop> needs a named function
#include <skein/train/run.hpp>

int loop(int steps) { return steps; }

void use() { (void)skein::train::run<&loop>({}, 1); }

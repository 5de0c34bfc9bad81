// SPDX-License-Identifier: Apache-2.0
// expect: skein: the loop of a run cannot take a non-const reference
#include <skein/train/run.hpp>

void loop(skein::train::context&, int& steps) { ++steps; }

void use(int& steps) { (void)skein::train::run<&loop>({}, steps); }

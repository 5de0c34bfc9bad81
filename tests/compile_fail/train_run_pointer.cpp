// SPDX-License-Identifier: Apache-2.0
// expect: skein: the loop of a run cannot take a pointer
#include <skein/train/run.hpp>

void loop(skein::train::context&, const char* name) { (void)name; }

void use() { (void)skein::train::run<&loop>({}, "a"); }

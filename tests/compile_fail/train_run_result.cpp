// SPDX-License-Identifier: Apache-2.0
// expect: skein: the result of the loop of a run cannot be sent
#include <skein/train/run.hpp>

struct holder {
    int* to = nullptr;
};
holder loop(skein::train::context&) { return {}; }

void use() { (void)skein::train::run<&loop>({}); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: the result type cannot be sent
#include <skein/rt/remote.hpp>

#include <memory>

std::unique_ptr<int> make(int x) { return std::make_unique<int>(x); }

void use() { (void)skein::remote<&make>(1); }

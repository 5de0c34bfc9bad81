// SPDX-License-Identifier: Apache-2.0
// [A5] of docs/semantics.md
// expect: skein: a remote function cannot take a pointer
#include <skein/rt/remote.hpp>

int load(const char* name) { return name[0]; }

void use() { (void)skein::remote<&load>("a"); }

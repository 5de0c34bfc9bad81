// SPDX-License-Identifier: Apache-2.0
// [A6] of docs/semantics.md
// expect: skein: a remote function cannot return a span or string_view
#include <skein/rt/remote.hpp>

#include <string>
#include <string_view>

#if defined(SKEIN_COMPILES)
std::string name_of(int id);
#else
std::string_view name_of(int id);
#endif

void use() { (void)skein::remote<&name_of>(7); }

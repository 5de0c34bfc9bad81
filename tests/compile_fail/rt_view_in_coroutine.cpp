// SPDX-License-Identifier: Apache-2.0
// [A6] of docs/semantics.md
// expect: skein: a remote coroutine cannot take a span or string_view
#include <skein/rt/remote.hpp>

#include <string_view>

skein::task<int> size(std::string_view text) { co_return static_cast<int>(text.size()); }

void use() { (void)skein::remote<&size>("text"); }

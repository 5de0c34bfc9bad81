// SPDX-License-Identifier: Apache-2.0
// A view hides in a field, and in a container.
// expect: skein: a remote function cannot return a span or string_view
#include <skein/rt/remote.hpp>

#include <string>
#include <string_view>
#include <vector>

struct entry {
    int id = 0;
#if defined(SKEIN_COMPILES)
    std::string name;
#else
    std::string_view name;
#endif
};
struct tree {
    std::vector<tree> below;
    std::vector<entry> entries;
};
tree load(int id);

void use() { (void)skein::remote<&load>(7); }

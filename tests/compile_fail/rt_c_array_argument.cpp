// SPDX-License-Identifier: Apache-2.0
// expect: skein: an argument type cannot be sent: make it a plain aggregate of types that can (no base class
// absent: boost
#include <skein/rt/remote.hpp>

#include <array>

struct request {
    int id = 0;
#if defined(SKEIN_COMPILES)
    std::array<float, 3> at{};
#else
    float at[3] = {};
#endif
};
int load(request r);

void use(const request& r) { (void)skein::remote<&load>(r); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: an argument type cannot be sent: make it a plain aggregate of types that can (no base class
// absent: boost
#include <skein/rt/remote.hpp>

struct common {
    int id = 0;
};
#if defined(SKEIN_COMPILES)
struct request {
    common first;
    int size = 0;
};
#else
struct request : common {
    int size = 0;
};
#endif
int load(request r);

void use(const request& r) { (void)skein::remote<&load>(r); }

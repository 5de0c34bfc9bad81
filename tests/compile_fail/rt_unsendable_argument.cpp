// SPDX-License-Identifier: Apache-2.0
// [A1] of docs/semantics.md
// expect: skein: an argument type cannot be sent
#include <skein/rt/remote.hpp>

#include <mutex>

struct guarded {
    explicit guarded(int);
    virtual ~guarded() = default;
};
int load(guarded g);

void use() { (void)skein::remote<&load>(guarded(1)); }

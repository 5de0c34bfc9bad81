// SPDX-License-Identifier: Apache-2.0
// expect: skein: not supported: a value that belongs to its loop
#include <skein/program/session.hpp>

#include <vector>

struct counter {
    int n = 0;
};
struct team {
    std::vector<skein::actor_handle<counter>> members;
};
team all() { return {}; }

void use(skein::session& s) { (void)s.submit<&all>(); }

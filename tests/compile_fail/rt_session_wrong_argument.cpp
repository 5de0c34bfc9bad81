// SPDX-License-Identifier: Apache-2.0
// expect: skein: an argument must be of the parameter's type, convertible to it, or a ref to such a value
#include <skein/program/session.hpp>

#include <string>

std::string name(int id) { return std::to_string(id); }
int load(int shard) { return shard; }

void use(skein::session& s) {
    auto text = s.submit<&name>(7);
    (void)s.submit<&load>(text);
}

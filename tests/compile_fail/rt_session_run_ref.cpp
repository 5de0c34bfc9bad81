// SPDX-License-Identifier: Apache-2.0
// expect: skein: not supported: a value that belongs to its loop
#include <skein/program/session.hpp>

int twice(int x) { return 2 * x; }
skein::task<skein::ref<int>> app() { co_return skein::remote<&twice>(1); }

void use(skein::session& s) { (void)s.run(app()); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein: a pending is for threads
#include <skein/program/session.hpp>

int twice(int x) { return 2 * x; }

skein::task<int> use(skein::session& s) { co_return co_await s.submit<&twice>(1); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein::run: app must return skein::task<int> or skein::task<void>
// absent: no matching function
#include <skein/program/run.hpp>

#if defined(SKEIN_COMPILES)
skein::task<int> app() { co_return 0; }
#else
int app() { return 0; }
#endif

int main(int argc, char** argv) { return skein::run(argc, argv, app); }

// SPDX-License-Identifier: Apache-2.0
// expect: skein::run: app must be callable with nothing
#include <skein/program/run.hpp>

skein::task<int> app(double speed) { co_return static_cast<int>(speed); }

int main(int argc, char** argv) { return skein::run(argc, argv, app); }

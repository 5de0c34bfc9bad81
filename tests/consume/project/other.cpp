// SPDX-License-Identifier: Apache-2.0
// A second file with the same headers: nothing is defined twice.
#if defined(USE_SINGLE_INCLUDE)
#include "skein/skein.hpp"
#else
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/wire/encode.hpp>
#endif

int other_file();
int other_file() { return static_cast<int>(skein::wire::encode(true).size()); }

// SPDX-License-Identifier: Apache-2.0
// An address means nothing to the peer: pointers are not encodable, nor is what holds one.
// expect: encodable
#include <skein/wire/encode.hpp>

struct message {
#if defined(SKEIN_COMPILES)
    int value = 0;
#else
    int* value = nullptr;
#endif
};

auto use(const message& m) { return skein::wire::encode(m); }

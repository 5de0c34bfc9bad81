// SPDX-License-Identifier: Apache-2.0
// A decoder fills an object that is there already: it must be possible to make one.
// expect: a type that is decoded needs a default constructor (or defaults on every field)
#include <skein/wire/decode.hpp>

struct message {
#if defined(SKEIN_COMPILES)
    skein::result<int> outcome = 0;
#else
    skein::result<int> outcome;
#endif
};

auto use(skein::byte_span bytes) { return skein::wire::decode<message>(bytes); }

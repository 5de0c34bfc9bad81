// SPDX-License-Identifier: Apache-2.0
// A view into the message cannot be written through.
// expect: decode into std::span<const T>: the view points into the input
#include <skein/wire/decode.hpp>

struct message {
#if defined(SKEIN_COMPILES)
    std::span<const float> values;
#else
    std::span<float> values;
#endif
};

auto use(skein::byte_span bytes) { return skein::wire::decode<message>(bytes); }

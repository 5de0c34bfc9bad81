// SPDX-License-Identifier: Apache-2.0
// result<error> could not say which of the two it is.
// expect: decode an error into an object: decode(bytes, e)
#include <skein/wire/decode.hpp>

skein::result<void> use(skein::byte_span bytes, skein::error& e) {
#if defined(SKEIN_COMPILES)
    return skein::wire::decode(bytes, e);
#else
    (void)e;
    (void)skein::wire::decode<skein::error>(bytes);
    return {};
#endif
}

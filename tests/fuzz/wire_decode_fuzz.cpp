// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the decoders: any input gives a value or an error, without a crash, a leak or
// an allocation that the input does not pay for. What was accepted is encoded and decoded again.
//
// The first byte chooses the type; the rest is the message.
//   clang++-19 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined ... wire_decode_fuzz.cpp
//   ./wire_decode_fuzz -rss_limit_mb=512 tests/fuzz/corpus/wire_decode

#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdio>
#include <cstdlib>

#include "../wire/messages.hpp"

namespace {

template <class T>
void one(skein::byte_span message) {
    // A copy of its own, at an aligned address, so that reading beyond it is seen.
    const auto bytes = skein::to_buffer(message);
    const auto value = skein::wire::decode<T>(bytes);
    if (!value) return;
    const auto again = skein::wire::encode(*value);
    const auto back = skein::wire::decode<T>(again);
    if (!back) {
        std::fprintf(stderr, "accepted once, refused when encoded again: %s\n",
                     back.error().what());
        std::abort();
    }
    // Unordered containers may come back in another order, but never with another size.
    if (skein::wire::encode(*back).size() != again.size()) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const skein::byte_span message(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
    switch (data[0] % 8) {
    case 0: one<wire_test::everything>(message); break;
    case 1: one<wire_test::views>(message); break;
    case 2: one<wire_test::owners>(message); break;
    case 3: one<wire_test::tree>(message); break;
    case 4: one<wire_test::outcome>(message); break;
    case 5: one<std::map<std::string, std::vector<std::optional<std::string>>>>(message); break;
    case 6:
        one<std::vector<std::variant<std::int32_t, std::string, std::vector<double>>>>(message);
        break;
    case 7:
        one<std::tuple<std::uint8_t, skein::result<std::string>, std::vector<bool>>>(message);
        break;
    }
    return 0;
}

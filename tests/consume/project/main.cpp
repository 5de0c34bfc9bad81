// SPDX-License-Identifier: Apache-2.0
// What a user's first program does: one task on the real loop, one value over the wire format.
#if defined(USE_SINGLE_INCLUDE)
#include "skein/skein.hpp"
#else
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#endif

#include <chrono>
#include <cstdio>
#include <string>

int other_file();

namespace {
struct message {
    std::string text;
    int number = 0;
};

skein::task<int> answer() {
    co_await skein::sleep_for(std::chrono::milliseconds(1));
    co_return 41;
}
} // namespace

int main() {
    skein::net::real_loop loop;
    message m;
    m.text = "skein " SKEIN_VERSION_STRING;
    m.number = loop.run(answer()) + other_file();
    auto bytes = skein::wire::encode(m);
    auto back = skein::wire::decode<message>(bytes);
    if (!back) return 1;
    std::printf("%s: %d\n", back->text.c_str(), back->number);
    return back->number == 42 ? 0 : 1;
}

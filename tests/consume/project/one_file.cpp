// SPDX-License-Identifier: Apache-2.0
// The smallest program that needs what skein stands on: fmt, Boost.PFR, coroutines. It compiles in seconds.
#include <skein/core/task.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdio>
#include <string>

namespace {
struct message {
    std::string text;
    int number = 0;
};
} // namespace

int main() {
    message m;
    m.text = "skein " SKEIN_VERSION_STRING;
    m.number = 42;
    auto bytes = skein::wire::encode(m);
    auto back = skein::wire::decode<message>(bytes);
    if (!back) return 1;
    std::printf("%s: %d\n", back->text.c_str(), back->number);
    return 0;
}

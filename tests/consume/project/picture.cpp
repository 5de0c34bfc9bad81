// SPDX-License-Identifier: Apache-2.0
// Decodes the picture that is named on the command line.
#include <skein/data/decode.hpp>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    std::ifstream in(argv[1], std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    skein::data::arena memory;
    const skein::data::arena_scope scope(memory);
    const auto made = skein::data::decode_image(std::as_bytes(std::span(file)));
    std::printf("%d x %d\n", made.height, made.width);
    return 0;
}

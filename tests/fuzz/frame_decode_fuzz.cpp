// SPDX-License-Identifier: Apache-2.0
// The frame decoder, fed in random pieces: never crashes, never invents bytes, and what it accepts
// encodes to what was read.
#include <skein/net/frame.hpp>

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace skein;
    if (size < 1) return 0;
    const std::size_t step = 1 + data[0];
    const byte_span all(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
    net::frame_decoder decoder(1 << 16);
    std::size_t accepted = 0;
    for (std::size_t at = 0; at < all.size(); at += step) {
        decoder.feed(all.subspan(at, std::min(step, all.size() - at)));
        for (;;) {
            auto next = decoder.next();
            if (!next) return 0;
            if (!*next) break;
            // The header's high flag says whether the body was checked: the bytes must be the same.
            const auto& f = **next;
            const bool checked =
                (load_le<std::uint16_t>(all.data() + accepted + 6) & net::body_crc_flag) != 0;
            auto again = net::encode_frame(f, checked);
            if (!checked) { // the CRC field of an unchecked body is free
                net::frame_header h;
                (void)h.read(all.data() + accepted, 1 << 16);
                h.encode(again.data());
            }
            if (accepted + again.size() > all.size()) std::abort();
            if (std::memcmp(again.data(), all.data() + accepted, again.size()) != 0) std::abort();
            accepted += again.size();
        }
    }
    return 0;
}

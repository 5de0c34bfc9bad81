// SPDX-License-Identifier: Apache-2.0
// Both sides of the handshake against a peer that says anything, in pieces of any size: it ends
// with an error, never with a connection, and never holds more than its buffers.
//
// The first byte chooses the side, whether this one holds a token that admits keys or one key, and
// whether the bytes begin behind a good hello, which may name any key; the second the size of the
// pieces.
#include <skein/core/scope.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/handshake.hpp>
#include <skein/sim/loop.hpp>

#include <tests/fuzz/scripted_stream.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

namespace {

using namespace skein;

task<bool> is_refused(net::stream* s, net::side side, bool holds_key, bool admits) {
    net::connection_options options;
    options.secret = net::token::generate();
    if (holds_key) options.secret = options.secret.derive({net::key_kind::attempt, 7});
    if (admits)
        options.admits = [](const net::key_name&) -> std::optional<error> {
            std::abort(); // no key was proven
        };
    options.self.name = "target";
    options.bounds.max_identity = 4096;
    try {
        auto shaking = net::handshake(*s, side, options);
        (void)co_await shaking;
    } catch (const error&) {
        co_return true;
    }
    co_return false;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const auto side = (data[0] & 1) != 0 ? net::side::connecting : net::side::accepting;
    byte_buffer bytes;
    std::size_t skipped = 2;
    if ((data[0] & 2) != 0) { // behind a good hello, so that the rest is reached
        net::detail::hello h;
        h.fill(side == net::side::connecting ? net::side::accepting : net::side::connecting,
               net::protocol_version, system_random());
        if ((data[0] & 4) != 0 && size >= 12) { // 10 of the bytes name the key
            net::key_name key;
            key.kind = static_cast<net::key_kind>(data[2] | data[3] << 8);
            for (int i = 0; i < 8; ++i) key.number |= std::uint64_t{data[4 + i]} << 8 * i;
            h.name(key);
            skipped = 12;
        } else if ((data[0] & 8) != 0) {
            h.name({net::key_kind::attempt, 7});
        }
        bytes = to_buffer(byte_span(h.raw));
    }
    append(bytes, byte_span(reinterpret_cast<const std::byte*>(data) + skipped, size - skipped));
    fuzz::scripted_stream s(std::move(bytes), {}, 1 + data[1]);
    sim::loop loop(1);
    if (!loop.run(is_refused(&s, side, (data[0] & 8) != 0, (data[0] & 16) != 0)))
        std::abort(); // nobody guesses 32 random bytes
    return 0;
}

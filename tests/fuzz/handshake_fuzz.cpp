// SPDX-License-Identifier: Apache-2.0
// Both sides of the handshake against a peer that says anything, in pieces of any size: it ends
// with an error, never with a connection, and never holds more than its buffers.
//
// The first byte chooses the side, the second the size of the pieces. A prefix flag lets the fuzzer
// start behind a good hello.
#include <skein/core/scope.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/handshake.hpp>
#include <skein/sim/loop.hpp>

#include <tests/fuzz/scripted_stream.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

using namespace skein;

task<bool> is_refused(net::stream* s, net::side side) {
    net::connection_options options;
    options.secret = net::token::generate();
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
    if ((data[0] & 2) != 0) { // behind a good hello, so that the rest is reached
        net::detail::hello h;
        h.fill(side == net::side::connecting ? net::side::accepting : net::side::connecting,
               net::protocol_version, system_random());
        bytes = to_buffer(byte_span(h.raw));
    }
    append(bytes, byte_span(reinterpret_cast<const std::byte*>(data) + 2, size - 2));
    fuzz::scripted_stream s(std::move(bytes), {}, 1 + data[1]);
    sim::loop loop(1);
    if (!loop.run(is_refused(&s, side))) std::abort(); // nobody guesses 32 random bytes
    return 0;
}

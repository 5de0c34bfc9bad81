// SPDX-License-Identifier: Apache-2.0
// Links against an authenticated peer that says anything: hellos to a table that knows links,
// answers to a link that dials again, and a link's own frames on a connection that stands. Nothing
// crashes, messages are never doubled, and what a link keeps never grows by what it is told.
//
// The input is a list of frames: kind, id, length of the body, body. Frames are well formed; what
// they say is the fuzzer's. The first byte chooses whether a link exists beforehand.
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/link_hello.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/sim/loop.hpp>

#include <tests/fuzz/scripted_stream.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

namespace {

using namespace skein;
using namespace std::chrono_literals;

void put_frame(byte_buffer& to, std::uint16_t kind, std::uint64_t id, byte_span body) {
    net::frame_header h;
    h.kind = kind;
    h.id = id;
    h.length = static_cast<std::uint32_t>(body.size());
    std::byte raw[net::frame_header::bytes];
    h.encode(raw);
    append(to, raw);
    append(to, body);
}

net::connection_options quiet_options() {
    net::connection_options o;
    o.self.name = "target";
    o.alive.mode = net::keep_alive_mode::off;
    return o;
}

net::connection::handle speak(byte_buffer bytes) {
    net::identity peer;
    peer.name = "fuzzer";
    return net::connection::over(std::make_unique<fuzz::scripted_stream>(std::move(bytes), 20ms),
                                 quiet_options(), std::move(peer));
}

net::detail::link_hello first_hello() {
    net::detail::link_hello h;
    h.from = 1;
    h.number = 1;
    h.generation = 1;
    h.window_messages = h.window_bytes = 1000;
    return h;
}

/// Admits a connection; a link, if it made one.
task<net::link::handle> admit(net::link_table* table, byte_buffer bytes) {
    try {
        auto admitting = table->admit(speak(std::move(bytes)));
        auto l = co_await admitting;
        co_return l;
    } catch (const error&) {
        co_return nullptr;
    }
}

task<void> run(byte_span script, bool known) {
    net::link_options how;
    how.incarnation = 2;
    how.resume_within = 100ms;
    net::link_table table(quiet_options(), how, {2, 1});
    byte_buffer bytes, hello;
    put_frame(hello, net::detail::link_hello_kind, 0, wire::encode(first_hello()));
    net::link::handle l;
    if (known) {
        auto first = admit(&table, hello);
        l = co_await first;
        if (!l) std::abort();
        l->set_handler([](const net::frame_view&) {});
        for (std::uint64_t i = 0; i < 4 && l->is_open(); ++i) l->send(1, 0, i, script.first(1));
    }
    while (script.size() >= 5) { // kind(2) id(1) length(2)
        const auto kind = load_le<std::uint16_t>(script.data());
        const auto id = std::to_integer<std::uint64_t>(script[2]);
        const std::size_t length =
            std::min<std::size_t>(load_le<std::uint16_t>(script.data() + 3), script.size() - 5);
        put_frame(bytes, kind, id, script.subspan(5, length));
        script = script.subspan(5 + length);
    }
    auto second = admit(&table, bytes);
    auto other = co_await second;
    for (const auto& one : {l, other}) {
        if (!one) continue;
        auto ended =
            with_timeout(one->wait_closed(), 10s); // the script's end breaks the connection
        co_await ended;
        if (one->kept_messages() > 5) std::abort();
        auto closing = one->close();
        co_await closing;
    }
    if (table.links() != 0) std::abort();
    l.reset();
    other.reset();
    auto rest = sleep_for(1s); // the scripts' streams wait for their end
    co_await rest;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const byte_span bytes(reinterpret_cast<const std::byte*>(data), size);
    (void)wire::decode<net::detail::link_answer>(bytes.subspan(1));
    sim::loop loop(1);
    loop.run(run(bytes.subspan(1), (data[0] & 1) != 0));
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// The request layer against an authenticated peer that says anything, and every decoder of its
// table by number. Nothing crashes, each call that waits ends, and a peer's large message takes no
// more memory than has come of it.
//
// The first byte chooses: a body for a decoder (then its number), or a list of frames: kind, flags,
// id, length of the body, body.
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/detail/link_hello.hpp>
#include <skein/net/detail/request_head.hpp>
#include <skein/net/requests.hpp>
#include <skein/sim/loop.hpp>

#include <tests/fuzz/scripted_stream.hpp>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace skein;
using namespace std::chrono_literals;

struct text_message {
    static constexpr std::uint16_t number = 1;
    std::string text;
    std::vector<std::uint32_t> numbers;
};
struct map_message {
    static constexpr std::uint16_t number = 2;
    std::map<std::string, std::vector<std::byte>> items;
    std::optional<std::uint64_t> more;
};
/// The greetings of links, so that they are in the table, too.
struct hello_message {
    static constexpr std::uint16_t number = 3;
    net::detail::link_hello hello;
};
struct answer_message {
    static constexpr std::uint16_t number = 4;
    net::detail::link_answer answer;
};
using table = net::message_table<text_message, map_message, hello_message, answer_message>;

task<text_message> answer_slowly(map_message, net::caller) {
    auto pause = sleep_for(1ms);
    co_await pause;
    co_return text_message{};
}

task<void> ask_once(net::requests* r) {
    try {
        auto asking = r->call<text_message>(map_message{});
        const auto reply = co_await asking;
    } catch (const error&) {}
}

byte_buffer frames_of(byte_span script) {
    byte_buffer bytes;
    while (script.size() >= 6) { // kind(1) flags(1) id(1) key(1) length(2)
        net::frame_header h;
        h.kind = static_cast<std::uint16_t>(net::detail::request_kind - 1 +
                                            std::to_integer<unsigned>(script[0]) % 8);
        h.flags = std::to_integer<std::uint16_t>(script[1]);
        h.id = std::to_integer<std::uint64_t>(script[2]);
        const std::size_t length =
            std::min<std::size_t>(load_le<std::uint16_t>(script.data() + 4), script.size() - 6);
        byte_buffer body;
        if ((script[3] & std::byte{1}) != std::byte{0}) { // behind a good head
            net::detail::request_head head;
            head.number =
                static_cast<std::uint16_t>(1 + (std::to_integer<unsigned>(script[3]) >> 6));
            head.client = 1;
            head.key = (std::to_integer<std::uint64_t>(script[3]) >> 1) & 7;
            head.done_below = (std::to_integer<std::uint64_t>(script[3]) >> 4) & 3;
            body.resize(net::detail::request_head::bytes);
            head.encode(body.data());
        }
        append(body, script.subspan(6, length));
        script = script.subspan(6 + length);
        h.length = static_cast<std::uint32_t>(body.size());
        std::byte raw[net::frame_header::bytes];
        h.encode(raw);
        append(bytes, raw);
        append(bytes, body);
    }
    return bytes;
}

task<void> converse(byte_span script) {
    net::request_service::bounds b;
    b.keys_per_client = 3;
    b.bytes_per_client = 100;
    b.clients = 2;
    auto service = std::make_shared<net::request_service>(b);
    service->on<map_message, text_message>(&answer_slowly);
    service->on_tell<text_message>([](text_message, const net::caller&) {});
    net::connection_options options;
    options.alive.mode = net::keep_alive_mode::off;
    net::identity peer;
    peer.name = "fuzzer";
    net::request_options how;
    how.peer.running = 4;
    auto below = net::connection::over(
        std::make_unique<fuzz::scripted_stream>(frames_of(script), 20ms), options, std::move(peer));
    auto r = net::requests::over(std::move(below), service, how);
    scope asking;
    asking.spawn(ask_once(r.get()));
    asking.spawn(ask_once(r.get()));
    auto joined = asking.join(); // the script's end ends them
    co_await joined;
    if (r->is_open() || r->waiting() != 0) std::abort();
    constexpr std::size_t most_remembered =
        14; // two clients, three outcomes and four that run each
    if (service->remembered() > most_remembered) std::abort();
    auto closing = r->close();
    co_await closing;
    r.reset();
    auto ending = service->close();
    co_await ending;
    auto rest = sleep_for(1s);
    co_await rest;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    logging::set_level(logging::level::off); // what is refused is the point here
    const byte_span bytes(reinterpret_cast<const std::byte*>(data), size);
    if ((data[0] & 1) == 0) {
        const auto number = table::numbers[data[1] % table::numbers.size()];
        (void)table::check(number, bytes.subspan(2)).has_value();
        return 0;
    }
    sim::loop loop(1);
    loop.run(converse(bytes.subspan(1)));
    return 0;
}

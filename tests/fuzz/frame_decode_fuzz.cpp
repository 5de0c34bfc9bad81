// SPDX-License-Identifier: Apache-2.0
// The read path of a connection, behind an honest handshake: bytes in pieces of any size never
// crash it, and it hands out just the frames that the plain decoder of tests/support finds in them.
#include <skein/core/scope.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/handshake.hpp>

#include "support/frame_decoder.hpp"
#include "support/manual_loop.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using namespace skein;

constexpr std::size_t max_body = std::size_t{1} << 16;

/// One direction in memory.
struct pipe {
    byte_buffer bytes;
    std::size_t at = 0;
    bool ended = false;
    event readable;
};

/// One end of two pipes; a read gives at most `step` bytes.
class memory_stream final : public net::stream {
public:
    memory_stream(std::shared_ptr<pipe> in, std::shared_ptr<pipe> out, std::size_t step)
        : in_(std::move(in)), out_(std::move(out)), step_(step) {}
    task<std::size_t> read_some(mut_byte_span into) override {
        for (;;) {
            if (const auto got = try_read(into)) co_return *got;
            in_->readable.reset();
            auto more = in_->readable.wait();
            co_await more;
        }
    }
    task<void> write_all(std::span<const byte_span> batch) override {
        (void)try_write(batch);
        co_return;
    }
    std::optional<std::size_t> try_read(mut_byte_span into) override {
        const std::size_t n = std::min({into.size(), step_, in_->bytes.size() - in_->at});
        if (n == 0) {
            if (in_->ended) return 0;
            return std::nullopt;
        }
        std::memcpy(into.data(), in_->bytes.data() + in_->at, n);
        in_->at += n;
        return n;
    }
    std::size_t try_write(std::span<const byte_span> batch) override {
        std::size_t n = 0;
        for (const auto& part : batch) {
            append(out_->bytes, part);
            n += part.size();
        }
        out_->readable.set();
        return n;
    }
    void close_send() noexcept override {
        out_->ended = true;
        out_->readable.set();
    }
    void close() noexcept override {
        in_->ended = true;
        in_->readable.set();
        close_send();
    }
    std::string peer_name() const override { return "fuzzer"; }

private:
    std::shared_ptr<pipe> in_, out_;
    std::size_t step_;
};

net::connection_options options() {
    net::connection_options o;
    o.self.name = "target";
    o.bounds.max_frame = max_body;
    o.alive.mode = net::keep_alive_mode::off;
    return o;
}

task<void> peer(net::stream* s, byte_span bytes) {
    const auto mine = options();
    auto shaking = net::handshake(*s, net::side::connecting, mine);
    (void)co_await shaking;
    (void)s->try_write(std::span<const byte_span>(&bytes, 1));
    s->close_send();
}

/// All frames that arrive before the end or the error.
task<void> target(std::unique_ptr<net::stream> s, std::vector<net::frame>* out) {
    auto accepting = net::connection::accept(std::move(s), options());
    auto c = co_await accepting;
    try {
        for (;;) {
            auto receiving = c->receive();
            auto f = co_await receiving;
            if (!f) break;
            out->push_back(std::move(*f));
        }
    } catch (const error&) {}
    auto closing = c->close();
    co_await closing;
}

task<void> both(byte_span bytes, std::size_t step, std::vector<net::frame>* out) {
    const auto forward = std::make_shared<pipe>(), back = std::make_shared<pipe>();
    memory_stream theirs(back, forward, max_body);
    scope running;
    running.spawn(peer(&theirs, bytes));
    running.spawn(target(std::make_unique<memory_stream>(forward, back, step), out));
    auto joined = running.join();
    co_await joined;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 1) return 0;
    const byte_span all(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
    std::vector<net::frame> got;
    skein_test::manual_loop loop;
    loop.run(both(all, 1 + std::size_t{data[0]} * data[0], &got));

    skein_test::frame_decoder decoder(max_body);
    decoder.feed(all);
    std::size_t seen = 0;
    for (;;) {
        auto next = decoder.next();
        if (!next || !*next) break;
        const auto& f = **next;
        if (f.kind >= net::first_reserved_kind) {
            if (f.kind == 0xff01 || f.kind == 0xff02) continue; // ping, pong
            break; // a goodbye or an unknown one ends it
        }
        if (seen == got.size()) std::abort();
        const auto& g = got[seen++];
        if (g.kind != f.kind || g.flags != f.flags || g.id != f.id || g.body != f.body)
            std::abort();
    }
    if (seen != got.size()) std::abort();
    return 0;
}

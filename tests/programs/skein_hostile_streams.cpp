// SPDX-License-Identifier: Apache-2.0
// Strangers and damaged bytes against a connection and an endpoint, in virtual time: what is
// delivered is what was sent, everything ends, and those who know the token are served.
//
//     skein_hostile_streams [--flips N] [--strangers N] [--seed S]
//
// --flips: a recorded conversation (handshake, frames, goodbye) is played again N times, each time
// with one bit of it changed. --strangers: half handshakes that are open at once. Prints one line
// per case.
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/handshake.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>

#include <fmt/format.h>

namespace {

using namespace skein;
using namespace std::chrono_literals;

void require(bool holds, const std::string& what) {
    if (!holds) throw error(errc::internal, what);
}

// ---- a stream that records, and changes one bit -------------------------------------------------

/// What went over one stream, seen from the connecting side, and which bit of it to change.
struct tap {
    byte_buffer sent, received;
    std::optional<std::uint64_t> bit; ///< counted over sent, then received, of the recording
    std::uint64_t sent_in_recording = 0;

    /// Changes the bit if it lies in these bytes, which begin at `at` of their direction.
    void damage(mut_byte_span bytes, std::uint64_t at, bool outgoing) const {
        if (!bit) return;
        std::uint64_t byte = *bit / 8;
        if (outgoing != (byte < sent_in_recording)) return;
        if (!outgoing) byte -= sent_in_recording;
        if (byte < at || byte >= at + bytes.size()) return;
        bytes[static_cast<std::size_t>(byte - at)] ^= std::byte{1} << (*bit % 8);
    }
};

class tapped_stream final : public net::stream {
public:
    tapped_stream(std::unique_ptr<net::stream> inner, tap* to)
        : inner_(std::move(inner)), tap_(to) {}

    task<std::size_t> read_some(mut_byte_span into) override {
        auto reading = inner_->read_some(into);
        const std::size_t got = co_await reading;
        arrived(into.first(got));
        co_return got;
    }
    task<void> write_all(std::span<const byte_span> batch) override {
        byte_buffer all = joined(batch);
        const byte_span part(all);
        auto writing = inner_->write_all(std::span<const byte_span>(&part, 1));
        co_await writing;
        append(tap_->sent, all);
    }
    std::optional<std::size_t> try_read(mut_byte_span into) override {
        const auto got = inner_->try_read(into);
        if (got) arrived(into.first(*got));
        return got;
    }
    std::size_t try_write(std::span<const byte_span> batch) override {
        const byte_buffer all = joined(batch);
        const byte_span part(all);
        const std::size_t taken = inner_->try_write(std::span<const byte_span>(&part, 1));
        append(tap_->sent, part.first(taken));
        return taken;
    }
    void close_send() noexcept override { inner_->close_send(); }
    void close() noexcept override { inner_->close(); }
    std::string peer_name() const override { return inner_->peer_name(); }

private:
    byte_buffer joined(std::span<const byte_span> batch) const {
        byte_buffer all;
        for (const auto& part : batch) append(all, part);
        tap_->damage(all, tap_->sent.size(), true);
        return all;
    }
    void arrived(mut_byte_span bytes) const {
        const std::size_t at = tap_->received.size();
        append(tap_->received, bytes);
        tap_->damage(bytes, at, false);
    }

    std::unique_ptr<net::stream> inner_;
    tap* tap_;
};

class tapped_network final : public net::network {
public:
    tapped_network(net::network& inner, tap* to) : inner_(inner), tap_(to) {}
    task<std::unique_ptr<net::stream>> connect(net::address to) override {
        auto connecting = inner_.connect(std::move(to));
        auto plain = co_await connecting;
        co_return std::make_unique<tapped_stream>(std::move(plain), tap_);
    }
    std::unique_ptr<net::listener> listen(net::address at) override {
        return inner_.listen(std::move(at));
    }

private:
    net::network& inner_;
    tap* tap_;
};

// ---- the conversation ---------------------------------------------------------------------------

constexpr std::uint64_t frames = 6;

net::connection_options options_of(std::string name, char digit = '7') {
    net::connection_options o;
    if (digit != '0') o.secret = net::token::from_hex(std::string(64, digit)).value(); // else: none
    o.self.name = std::move(name);
    return o;
}

byte_buffer body_of(std::uint64_t i) {
    return byte_buffer(static_cast<std::size_t>(i == 3 ? 9000 : i * 37 % 90),
                       static_cast<std::byte>(i + 1));
}

/// Frames come in order and unchanged; their number.
task<std::uint64_t> receive_all(net::connection* c, bool echo) {
    std::uint64_t count = 0;
    for (;; ++count) {
        auto next = c->receive();
        auto f = co_await next;
        if (!f) co_return count;
        require(f->id == count && f->kind == 7 + count && f->flags == 3 &&
                    f->body == body_of(count),
                fmt::format("frame {} is not as it was sent", count));
        if (echo) c->send(std::move(*f));
        if (!echo && count + 1 == frames) co_return frames;
    }
}

struct ends {
    bool client_done = false, server_done = false; ///< in order, with all frames
    std::optional<error> client, server;           ///< why not
};

/// A broken invariant is no error of the connection.
void note(const error& e, std::optional<error>& to) {
    if (e.code() == errc::internal) throw e;
    to = e;
}

task<void> serve_one(net::listener* at, ends* out) {
    try {
        auto accepting = at->accept();
        auto from = co_await accepting;
        auto greeting = net::connection::accept(std::move(from), options_of("server"));
        auto c = co_await greeting;
        auto receiving = receive_all(c.get(), true);
        out->server_done = co_await receiving == frames;
        auto closing = c->close();
        co_await closing;
    } catch (const error& e) {
        note(e, out->server);
    }
}

task<void> ask(net::network* via, net::address to, ends* out) {
    try {
        auto connecting = net::connection::connect(*via, std::move(to), options_of("client"));
        auto c = co_await connecting;
        std::optional<error> fault;
        try {
            for (std::uint64_t i = 0; i < frames; ++i)
                c->send(static_cast<std::uint16_t>(7 + i), 3, i, body_of(i));
            auto receiving = receive_all(c.get(), false);
            out->client_done = co_await receiving == frames;
        } catch (const error& e) {
            note(e, fault);
        }
        auto closing = c->close();
        co_await closing;
        if (fault) out->client = fault;
    } catch (const error& e) {
        note(e, out->client);
    }
}

task<void> converse(sim::network* net, tap* t, ends* out) {
    auto listener = net->host("server").listen(net::address::sim("server", 1));
    tapped_network tapped(net->host("client"), t);
    scope both;
    both.spawn(serve_one(listener.get(), out));
    both.spawn(ask(&tapped, listener->local(), out));
    auto ended = with_timeout(both.join(), 120s); // a flipped goodbye is a silent peer
    co_await ended;
}

/// The same seed gives the same bytes, so the recording is the conversation itself.
ends play(std::uint64_t seed, tap* t) {
    sim::loop loop(seed);
    loop.set_budget(200'000, 1h);
    sim::network net(loop, sim::faults());
    ends out;
    loop.run(converse(&net, t, &out));
    require(net.open_streams() == 0, "streams are still open");
    return out;
}

std::string flipped_bits(std::uint64_t seed, std::uint64_t count) {
    tap recording;
    const ends quiet = play(seed, &recording);
    require(quiet.client_done && quiet.server_done, "the undisturbed conversation failed");
    const std::uint64_t bits = 8 * (recording.sent.size() + recording.received.size());
    seeded_random draw(seed);
    std::uint64_t noticed = 0, harmless = 0;
    for (std::uint64_t k = 0; k < count; ++k) {
        tap t;
        t.bit = count >= bits ? k % bits : draw.below(bits); // all of them, or some
        t.sent_in_recording = recording.sent.size();
        try {
            const ends out = play(seed, &t);
            ++(out.client_done && out.server_done ? harmless : noticed);
        } catch (const error& e) {
            throw error(errc::internal,
                        fmt::format("bit {} of {} (seed {}): {}", *t.bit, bits, seed, e.what()));
        }
    }
    // What may change unseen: the proof field of a verdict that proves nothing, and the last
    // goodbye.
    require(harmless * 50 <= count + 50, fmt::format("{} changed bits went unseen", harmless));
    return fmt::format("{} of {} bits changed, {} noticed, {} without effect", count, bits, noticed,
                       harmless);
}

// ---- strangers against an endpoint --------------------------------------------------------------

task<void> serve_echo(net::connection::handle c) {
    auto receiving = receive_all(c.get(), true);
    (void)co_await receiving;
    auto closing = c->close();
    co_await closing;
}

/// Says these bytes, in pieces, with a pause after each, and stays until it is thrown out.
task<void> stranger(net::network* via, net::address to, byte_buffer words, std::size_t piece,
                    duration pause, std::uint64_t* dropped) {
    std::unique_ptr<net::stream> s;
    try {
        auto connecting = via->connect(std::move(to));
        s = co_await connecting;
        for (std::size_t at = 0; at < words.size(); at += piece) {
            const byte_span part =
                byte_span(words).subspan(at).first(std::min(piece, words.size() - at));
            auto writing = s->write_all(std::span<const byte_span>(&part, 1));
            co_await writing;
            auto resting = sleep_for(pause);
            co_await resting;
        }
        byte_buffer answer(512);
        for (;;) {
            auto reading = s->read_some(answer);
            if (co_await reading == 0) break;
        }
        ++*dropped;
    } catch (const error& e) {
        if (e.code() == errc::cancelled) throw;
        ++*dropped;
    }
    if (s) s->close();
}

/// Sends what the server says back to it.
task<void> mirror(net::network* via, net::address to, std::uint64_t* dropped) {
    try {
        auto connecting = via->connect(std::move(to));
        auto s = co_await connecting;
        net::connection_options mine = options_of("mirror", '1');
        byte_buffer buffer(512);
        { // a good hello first: without one the server says nothing
            auto shaking = net::handshake(*s, net::side::connecting, mine);
            try {
                (void)co_await shaking;
            } catch (const error&) {}
        }
        auto again = via->connect(net::address::sim("server", 1));
        auto second = co_await again;
        for (std::size_t total = 0; total < 4096;) {
            auto reading = second->read_some(buffer);
            const std::size_t got = co_await reading;
            if (got == 0) break;
            total += got;
            const byte_span part = byte_span(buffer).first(got);
            auto writing = second->write_all(std::span<const byte_span>(&part, 1));
            co_await writing;
        }
        s->close();
        second->close();
    } catch (const error& e) {
        if (e.code() == errc::cancelled) throw;
    }
    ++*dropped;
}

/// A client with the token is served beside all strangers, in time.
struct siege {
    byte_buffer words = {};
    std::size_t piece = 4096;
    duration pause = 0s;
    std::uint64_t count = 1;
    bool mirrors = false;
    char digit = 0; ///< clients with another token instead: this digit 64 times
};

task<void> refused_client(net::network* via, net::address to, char digit, std::uint64_t* dropped) {
    try {
        auto connecting = net::connection::connect(*via, std::move(to), options_of("x", digit));
        auto c = co_await connecting;
        throw error(errc::internal, "a stranger was let in");
    } catch (const error& e) {
        if (e.code() == errc::internal || e.code() == errc::cancelled) throw;
        require(e.code() == errc::permission_denied || e.code() == errc::reset ||
                    e.code() == errc::timeout,
                std::string("a wrong token ended with: ") + e.what());
        ++*dropped;
    }
}

task<void> client_among_strangers(net::network* via, net::address to, ends* out) {
    net::connection::handle c;
    for (int tries = 0; !c; ++tries) {
        auto connecting = net::connection::connect(*via, to, options_of("client"));
        auto attempt = as_result(std::move(connecting));
        auto connected = co_await attempt;
        if (connected) {
            c = std::move(*connected);
            break;
        }
        if (tries == 20) throw connected.error();
        auto resting = sleep_for(50ms);
        co_await resting;
    }
    for (std::uint64_t i = 0; i < frames; ++i)
        c->send(static_cast<std::uint16_t>(7 + i), 3, i, body_of(i));
    auto receiving = receive_all(c.get(), false);
    out->client_done = co_await receiving == frames;
    auto closing = c->close();
    co_await closing;
}

task<void> besiege(sim::network* net, siege s, ends* out, std::uint64_t* dropped,
                   duration* served_after) {
    net::endpoint server(net->host("server"), net::address::sim("server", 1), options_of("server"));
    scope serving, strangers;
    serving.spawn(server.serve(&serve_echo));
    auto& evil = net->host("evil");
    for (std::uint64_t k = 0; k < s.count; ++k) {
        if (s.mirrors)
            strangers.spawn(mirror(&evil, server.local(), dropped));
        else if (s.digit != 0)
            strangers.spawn(refused_client(&evil, server.local(), s.digit, dropped));
        else
            strangers.spawn(stranger(&evil, server.local(), s.words, s.piece, s.pause, dropped));
    }
    auto settling = sleep_for(100ms); // they are all there before the client comes
    co_await settling;
    const auto begin = loop::current().now();
    auto asking =
        with_timeout(client_among_strangers(&net->host("client"), server.local(), out), 600s);
    co_await asking;
    *served_after = loop::current().now() - begin;
    auto gone = with_timeout(strangers.join(), 3600s); // every one of them is thrown out
    co_await gone;
    server.close();
    auto ended = with_timeout(serving.join(), 60s);
    co_await ended;
}

std::string strangers(std::uint64_t seed, siege s) {
    sim::loop loop(seed);
    sim::network net(loop, sim::faults());
    ends out;
    std::uint64_t dropped = 0;
    duration served_after{};
    const std::uint64_t count = s.count;
    loop.run(besiege(&net, std::move(s), &out, &dropped, &served_after));
    require(out.client_done, "a client with the token was not served");
    require(served_after < 30s, fmt::format("a client with the token waited {:.1f} s",
                                            std::chrono::duration<double>(served_after).count()));
    require(dropped == count, fmt::format("{} of {} strangers were thrown out", dropped, count));
    require(net.open_streams() == 0, "streams are still open");
    return fmt::format("{} strangers thrown out, a client beside them was served after {:.3f} s",
                       count, std::chrono::duration<double>(served_after).count());
}

/// The bytes that a client with the token says; to anybody but its own server they are worth
/// nothing.
byte_buffer recorded_words(std::uint64_t seed) {
    tap recording;
    (void)play(seed, &recording);
    return recording.sent;
}

} // namespace

int main(int argc, char** argv) {
    std::uint64_t flips = 20'000, crowd = 5'000, seed = 1;
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        auto* const to = word == "--flips"       ? &flips
                         : word == "--strangers" ? &crowd
                         : word == "--seed"      ? &seed
                                                 : nullptr;
        if (to == nullptr || i + 1 == argc) {
            std::fprintf(stderr, "skein_hostile_streams [--flips N] [--strangers N] [--seed S]\n");
            return 2;
        }
        *to = std::strtoull(argv[++i], nullptr, 10);
    }
    ::setenv("SKEIN_LOG_LEVEL", "off", 1);
    ::mallopt(M_MMAP_THRESHOLD, 1 << 26); // each world's buffers: kept, not mapped again
    ::mallopt(M_TRIM_THRESHOLD, 1 << 28);
    int failed = 0;
    const auto run = [&](const char* name, auto body) {
        try {
            const std::string said = body();
            std::printf("ok      %s: %s\n", name, said.c_str());
        } catch (const std::exception& e) {
            ++failed;
            std::printf("FAILED  %s: %s\n", name, e.what());
        }
        std::fflush(stdout);
    };
    run("flipped bits", [&] { return flipped_bits(seed, flips); });
    const byte_buffer words = recorded_words(seed + 1);
    const auto first = [&](std::size_t n) { return to_buffer(byte_span(words).first(n)); };
    run("idle", [&] { return strangers(seed, {.words = {}, .count = 1'000}); });
    run("half handshakes", [&] { return strangers(seed, {.words = first(30), .count = crowd}); });
    run("slow bytes",
        [&] { return strangers(seed, {.words = words, .piece = 1, .pause = 1s, .count = 200}); });
    run("replayed", [&] { return strangers(seed, {.words = words, .count = 200}); });
    run("reflected", [&] { return strangers(seed, {.count = 50, .mirrors = true}); });
    run("wrong tokens", [&] { return strangers(seed, {.count = 200, .digit = '8'}); });
    run("zero tokens", [&] { return strangers(seed, {.count = 200, .digit = '0'}); });
    return failed == 0 ? 0 : 1;
}

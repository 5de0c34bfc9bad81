// SPDX-License-Identifier: Apache-2.0
#pragma once
// Frames per second over a connection or link, with many in flight: an echo server on a thread of
// its own, and the client that keeps them under way.

#include "bench.hpp"

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace bench {

inline skein::net::connection_options plain_options() {
    skein::net::connection_options o;
    o.secret = skein::net::token::from_hex(std::string(64, '5')).value();
    return o;
}

template <class Wire>
skein::task<void> echo_frames(std::shared_ptr<Wire> c) {
    c->set_handler([to = c.get()](const skein::net::frame_view& f) {
        to->send(f.kind, f.flags, f.id, f.body);
    });
    auto ended = c->wait_closed();
    co_await ended;
}

/// A server on a thread of its own, for as long as it lives.
template <class Endpoint>
class server_of {
public:
    server_of(const skein::net::address& at, typename Endpoint::handler each) : thread_("echo") {
        thread_.run([&] { return start(this, at, std::move(each)); });
    }
    server_of(const server_of&) = delete;
    server_of& operator=(const server_of&) = delete;
    ~server_of() {
        thread_.run([&] { return stop(this); });
    }
    [[nodiscard]] const skein::net::address& local() const { return local_; }

private:
    static skein::task<void> start(server_of* self, skein::net::address at,
                                   typename Endpoint::handler each) {
        self->network_.emplace(self->thread_.loop());
        self->endpoint_ = std::make_unique<Endpoint>(*self->network_, at, plain_options());
        self->local_ = self->endpoint_->local();
        self->serving_ = std::make_unique<skein::scope>();
        self->serving_->spawn(self->endpoint_->serve(std::move(each)));
        co_return;
    }
    static skein::task<void> stop(server_of* self) {
        self->endpoint_->close();
        auto ended = self->serving_->join();
        co_await ended;
        self->endpoint_.reset();
    }
    skein::net::loop_thread thread_;
    std::optional<skein::net::real_network> network_;
    std::unique_ptr<Endpoint> endpoint_;
    std::unique_ptr<skein::scope> serving_;
    skein::net::address local_;
};

template <class Wire>
skein::task<void> flood(skein::net::network* via, skein::net::address to, int in_flight,
                        std::uint64_t total) {
    auto connecting = Wire::connect(*via, to, plain_options());
    auto c = co_await connecting;
    const skein::byte_buffer body(40);
    std::uint64_t sent = 0, got = 0;
    skein::event done;
    c->set_handler([&, to = c.get()](const skein::net::frame_view&) {
        if (++got == total) done.set();
        if (sent < total) to->send(1, 0, ++sent, body);
    });
    for (int i = 0; i < in_flight; ++i) c->send(1, 0, ++sent, body);
    auto all = done.wait();
    co_await all;
    auto closing = c->close();
    co_await closing;
}

/// Round trips of frames per second with 1,000 in flight.
template <class Wire, class Server>
double frames_per_second(const skein::net::address& at, std::uint64_t total = 400'000) {
    const Server there(at, &echo_frames<Wire>);
    skein::net::real_loop loop;
    skein::net::real_network network(loop);
    return static_cast<double>(total) /
           seconds([&] { loop.run(flood<Wire>(&network, there.local(), 1000, total)); });
}

} // namespace bench

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The accept loop of an endpoint, and the patience of its clients.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE endpoint::endpoint(network& via, const address& at, connection_options options,
                                endpoint_limits bounds)
    : options_(std::move(options)), handshakes_(bounds.concurrent_handshakes) {
    if (options_.secret.empty() && !at.is_loopback()) {
        throw error(errc::permission_denied, "listen " + to_string(at) + " without a token")
            .with_hint("give a token, or listen on 127.0.0.1");
    }
    listener_ = via.listen(at);
}

SKEIN_INLINE endpoint::~endpoint() = default;

SKEIN_INLINE task<void> endpoint::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return with_scope(&endpoint::accept_loop, this);
}

SKEIN_INLINE task<void> endpoint::accept_loop(scope& children, endpoint* self) {
    auto* cancel = co_await skein::detail::current_cancel{};
    for (;;) {
        auto slot = self->handshakes_.acquire(1);
        co_await slot;
        std::unique_ptr<stream> next;
        std::optional<error> fault;
        try {
            auto accepting = self->listener_->accept();
            next = co_await accepting;
        } catch (const error& e) {
            fault = e;
        }
        if (!fault) {
            children.spawn(one(self, std::move(next)));
            continue;
        }
        self->handshakes_.release(1);
        if (fault->code() == errc::closed) co_return;
        if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested())
            throw *fault;
        if (fault->code() == errc::invalid_argument || fault->code() == errc::not_supported)
            throw *fault;
        // Out of descriptors, a network that is down, a firewall's no, or a stream that
        // broke before we took it: go on later.
        logging::warn("net", "accept failed", {{"what", fault->what()}});
        auto pause = sleep_for(std::chrono::milliseconds(100));
        co_await pause;
    }
}

SKEIN_INLINE task<void> endpoint::one(endpoint* self, std::unique_ptr<stream> from) {
    auto* cancel = co_await skein::detail::current_cancel{};
    const std::string peer = from->peer_name();
    connection::handle c;
    std::optional<error> fault;
    try {
        auto greeting = connection::accept(std::move(from), self->options_);
        c = co_await greeting;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    self->handshakes_.release(1);
    if (fault) {
        if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested())
            throw *fault;
        ++self->refused_;
        logging::warn("net", "connection refused", {{"peer", peer}, {"why", fault->what()}});
        co_return;
    }
    ++self->accepted_;
    try {
        auto serving = self->handler_(c);
        co_await serving;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    if (fault) c->abort(*fault);
    auto closing = shield(c->close());
    co_await closing;
    if (!fault) co_return;
    if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested()) throw *fault;
    logging::warn("net", "connection failed", {{"peer", c->peer_name()}, {"why", fault->what()}});
}

SKEIN_INLINE duration reconnect_policy::delay(int tries, random_source& random) const {
    duration d = first_delay;
    for (int i = 1; i < tries && d < most_delay; ++i) d *= 2;
    d = std::min(d, most_delay);
    const double part = 1.0 - jitter * random.unit();
    return duration(static_cast<std::int64_t>(static_cast<double>(d.count()) * part));
}

SKEIN_INLINE task<connection::handle> connect_patiently(network& via, address to,
                                                        connection_options options,
                                                        reconnect_policy policy,
                                                        random_source& random) {
    const auto begin = loop::current().now();
    for (int tries = 1;; ++tries) {
        std::optional<error> fault;
        try {
            auto trying =
                with_timeout(connection::connect(via, to, options), policy.connect_timeout);
            auto made = co_await trying;
            co_return made;
        } catch (const error& e) {
            fault = e;
        }
        if (!reconnect_policy::is_transient(fault->code())) throw *fault;
        if (tries >= policy.max_tries) {
            error e(fault->code(), fmt::format("connect {} failed after {} {} ({:.1f} s)",
                                               to_string(to), tries, tries == 1 ? "try" : "tries",
                                               to_seconds(loop::current().now() - begin)));
            e.with_cause(fault->what());
            throw e;
        }
        auto pause = sleep_for(policy.delay(tries, random));
        co_await pause;
    }
}

SKEIN_INLINE task<connection::handle> connect_patiently(network& via, address to,
                                                        connection_options options,
                                                        reconnect_policy policy) {
    auto connecting =
        connect_patiently(via, std::move(to), std::move(options), policy, loop::current().random());
    auto made = co_await connecting;
    co_return made;
}

} // namespace skein::net

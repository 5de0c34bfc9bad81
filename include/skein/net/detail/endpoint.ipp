// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an endpoint does with a stream: handshake, handler, an orderly end.

#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>

#include <exception>
#include <optional>
#include <utility>

namespace skein::net {
namespace detail {

/// A door without a lock must not stand where others can reach it.
SKEIN_INLINE const address& check_guarded(const address& at, const token& secret) {
    if (secret.empty() && !at.is_loopback()) {
        throw error(errc::permission_denied, "listen " + to_string(at) + " without a token")
            .with_hint("give a token, or listen on 127.0.0.1");
    }
    return at;
}

/// The handshake has a limit of its own; that of the door counts if it is the shorter one.
SKEIN_INLINE acceptor_options within_handshake(acceptor_options bounds, time_span handshake) {
    if (bounds.deadline && duration(*bounds.deadline) >= duration(handshake))
        bounds.deadline.reset();
    return bounds;
}

} // namespace detail

SKEIN_INLINE endpoint::endpoint(network& via, const address& at, connection_options options,
                                acceptor_options bounds)
    : options_(std::move(options)),
      door_(via, detail::check_guarded(at, options_.secret),
            detail::within_handshake(bounds, options_.bounds.handshake_deadline)) {}
SKEIN_INLINE endpoint::~endpoint() = default;

SKEIN_INLINE task<void> endpoint::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return door_.serve([this](std::unique_ptr<stream> from, admission* place) {
        return one(this, std::move(from), place);
    });
}

SKEIN_INLINE task<void> endpoint::one(endpoint* self, std::unique_ptr<stream> from,
                                      admission* place) {
    auto* cancel = co_await skein::detail::current_cancel{};
    auto greeting = connection::accept(std::move(from), self->options_, {}, place);
    const connection::handle c = co_await greeting;
    place->authenticated();
    std::optional<error> fault;
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

} // namespace skein::net

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The listening side as a whole (accept, handshake, one task per connection), and the patient
// connecting side.
//
//     net::endpoint server(network, net::address::tcp("127.0.0.1", 0), options);
//     auto serving = server.serve([](net::connection::handle c) { return talk(std::move(c)); });
//
//     auto dialing = net::connect_patiently(network, to, options, net::reconnect_policy());
//     auto c = co_await dialing;

#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/function.hpp>
#include <skein/core/log.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

/// Bounds of an endpoint.
struct endpoint_limits {
    std::size_t concurrent_handshakes = 64; ///< further streams wait in the kernel's backlog
};

/// Listens and serves until it is closed or cancelled.
class endpoint {
public:
    using handler = unique_function<task<void>(connection::handle)>;

    /// Binds at once.
    ///   errors  those of network::listen; permission_denied: an address that other hosts can reach
    ///           without a token
    endpoint(network& via, const address& at, connection_options options,
             endpoint_limits bounds = {})
        : options_(std::move(options)), handshakes_(bounds.concurrent_handshakes) {
        if (options_.secret.empty() && !at.is_loopback()) {
            throw error(errc::permission_denied, "listen " + to_string(at) + " without a token")
                .with_hint("give a token, or listen on 127.0.0.1");
        }
        listener_ = via.listen(at);
    }

    [[nodiscard]] address local() const { return listener_->local(); }

    /// Accepts until close(). Every connection gets a task of `serve_one` in the scope of this call; an
    /// error of one (handshake or handler) is logged and ends that one only, whatever its code. Streams
    /// that cannot be accepted are logged, too, and accepting goes on. Returns when all ended.
    ///   errors  cancelled (then the tasks are cancelled too); what a listener cannot get over
    ///           (invalid_argument, not_supported)
    [[nodiscard]] task<void> serve(handler serve_one) {
        handler_ = std::move(serve_one);
        return with_scope(&endpoint::accept_loop, this);
    }

    /// Stops accepting; connections that are served go on.
    void close() noexcept { listener_->close(); }

    /// Handshakes that failed, and connections served so far.
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
    [[nodiscard]] std::uint64_t accepted() const noexcept { return accepted_; }

private:
    static task<void> accept_loop(scope& children, endpoint* self) {
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

    static task<void> one(endpoint* self, std::unique_ptr<stream> from) {
        auto* cancel = co_await skein::detail::current_cancel{};
        const auto cancelled = [cancel] { return cancel != nullptr && cancel->requested(); };
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
            if (fault->code() == errc::cancelled && cancelled()) throw *fault;
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
        if (fault->code() == errc::cancelled && cancelled()) throw *fault;
        logging::warn("net", "connection failed", {{"peer", c->peer_name()}, {"why", fault->what()}});
    }

    connection_options options_;
    semaphore handshakes_;
    std::unique_ptr<listener> listener_;
    handler handler_;
    std::uint64_t refused_ = 0, accepted_ = 0;
};

/// How often and how long to try.
struct reconnect_policy {
    int max_tries = 8;
    duration first_delay = time_constants::lan().reconnect_first; ///< doubles
    duration most_delay = time_constants::lan().reconnect_most;
    double jitter = 0.5; ///< of the delay, drawn: many peers must not come at once
    duration connect_timeout = time_constants::lan().connect_timeout; ///< of one try

    /// The pause after the given failed try (from 1 on).
    [[nodiscard]] duration delay(int tries, random_source& random) const {
        duration d = first_delay;
        for (int i = 1; i < tries && d < most_delay; ++i) d *= 2;
        d = std::min(d, most_delay);
        const double part = 1.0 - jitter * random.unit();
        return duration(static_cast<std::int64_t>(static_cast<double>(d.count()) * part));
    }
    /// Worth another try: nobody there yet, or the way broke. A wrong token or build is not.
    [[nodiscard]] static bool is_transient(errc code) noexcept {
        return code == errc::refused || code == errc::timeout || code == errc::reset ||
               code == errc::closed || code == errc::exhausted;
    }
};

/// Connects, again and again as the policy says. `via` and `random` must outlive the task.
///   errors  the last one, with the number of tries and the time they took; not transient ones at once
inline task<connection::handle> connect_patiently(network& via, address to,
                                                  connection_options options,
                                                  reconnect_policy policy, random_source& random) {
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

/// The same with the randomness of the loop that runs it.
inline task<connection::handle> connect_patiently(network& via, address to,
                                                  connection_options options,
                                                  reconnect_policy policy = {}) {
    auto connecting =
        connect_patiently(via, std::move(to), std::move(options), policy, loop::current().random());
    auto made = co_await connecting;
    co_return made;
}

} // namespace skein::net

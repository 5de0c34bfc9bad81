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

#include <skein/core/constants.hpp>
#include <skein/core/function.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

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
             endpoint_limits bounds = {});
    ~endpoint();

    [[nodiscard]] address local() const { return listener_->local(); }

    /// Accepts until close(). Every connection gets a task of `serve_one` in the scope of this call; an
    /// error of one (handshake or handler) is logged and ends that one only, whatever its code. Streams
    /// that cannot be accepted are logged, too, and accepting goes on. Returns when all ended.
    ///   errors  cancelled (then the tasks are cancelled too); what a listener cannot get over
    ///           (invalid_argument, not_supported)
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting; connections that are served go on.
    void close() noexcept { listener_->close(); }

    /// Handshakes that failed, and connections served so far.
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
    [[nodiscard]] std::uint64_t accepted() const noexcept { return accepted_; }

private:
    static task<void> accept_loop(scope& children, endpoint* self);
    static task<void> one(endpoint* self, std::unique_ptr<stream> from);

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
    [[nodiscard]] duration delay(int tries, random_source& random) const;
    /// Worth another try: nobody there yet, or the way broke. A wrong token or build is not.
    [[nodiscard]] static bool is_transient(errc code) noexcept {
        return code == errc::refused || code == errc::timeout || code == errc::reset ||
               code == errc::closed || code == errc::exhausted;
    }
};

/// Connects, again and again as the policy says. `via` and `random` must outlive the task.
///   errors  the last one, with the number of tries and the time they took; not transient ones at once
task<connection::handle> connect_patiently(network& via, address to, connection_options options,
                                           reconnect_policy policy, random_source& random);

/// The same with the randomness of the loop that runs it.
task<connection::handle> connect_patiently(network& via, address to, connection_options options,
                                           reconnect_policy policy = {});

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/endpoint.ipp>
#endif

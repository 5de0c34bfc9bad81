// SPDX-License-Identifier: Apache-2.0
#pragma once
// The patient connecting side: again and again until somebody is there, with growing, spread
// pauses.
//
//     auto dialing = net::connect_patiently(network, to, options);
//     // or dial_patiently: the authenticated stream itself
//     auto c = co_await dialing;

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/random.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/handshake.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

namespace skein::net {

/// How often and how long to try.
struct reconnect_policy {
    int max_tries = 8;                    ///< 0: as many as fit in before `until`
    time_point until = time_point::max(); ///< no try and no pause goes on after it
    time_span first_delay = time_constants::lan().reconnect_first; ///< doubles
    time_span most_delay = time_constants::lan().reconnect_most;
    double jitter = 0.5; ///< of the delay, drawn: many peers must not come at once
    time_span connect_timeout =
        time_constants::lan().connect_timeout; ///< of one, without handshake
    bool (*worth_another)(errc) noexcept = &is_transient;

    /// The pause after the given failed try (from 1 on).
    [[nodiscard]] duration delay(int tries, random_source& random) const;

    /// Nobody there yet, or the way broke, or has damaged something. A wrong token or build is not.
    [[nodiscard]] static bool is_transient(errc code) noexcept;
    /// All but a clear no (wrong token, other build or purpose) and cancellation: a name that is
    /// not known yet, a port that somebody else still holds.
    [[nodiscard]] static bool is_no_refusal(errc code) noexcept;
};

/// Connects and shakes hands (net::dial), again and again as the policy says. `via` and `random`
/// must outlive the task.
///   errors  the last one, with the number of tries and the time they took; at once what is not
///           worth another try
task<authenticated_stream> dial_patiently(network& via, address to, connection_options options,
                                          reconnect_policy policy, random_source& random);
/// The same with the randomness of the loop that runs it.
task<authenticated_stream> dial_patiently(network& via, address to, connection_options options,
                                          reconnect_policy policy = {});

/// dial_patiently, and a connection over the stream.
task<connection::handle> connect_patiently(network& via, address to, connection_options options,
                                           reconnect_policy policy, random_source& random);
task<connection::handle> connect_patiently(network& via, address to, connection_options options,
                                           reconnect_policy policy = {});

namespace detail {

/// One try: a stream, within its own limit, and the handshake.
task<authenticated_stream> dial_once(network* via, const address* to,
                                     const connection_options* options, time_span connect_timeout);

} // namespace detail

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/dial.ipp>
#endif

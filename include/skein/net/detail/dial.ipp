// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one back-off loop.

#include <skein/core/backoff.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE duration reconnect_policy::delay(int tries, random_source& random) const {
    const auto whole = pause_after(tries, first_delay, most_delay);
    return time_span(std::chrono::duration<double, std::nano>(whole) *
                     (1.0 - jitter * random.unit()));
}

SKEIN_INLINE bool reconnect_policy::is_transient(errc code) noexcept {
    return code == errc::refused || code == errc::timeout || code == errc::reset ||
           code == errc::closed || code == errc::exhausted || code == errc::corrupt;
}

SKEIN_INLINE bool reconnect_policy::is_no_refusal(errc code) noexcept {
    return code != errc::cancelled && code != errc::permission_denied && code != errc::mismatch;
}

namespace detail {

/// One try: the way has the policy's limit, the handshake that of the options.
SKEIN_INLINE task<authenticated_stream> dial_once(network* via, const address* to,
                                                  const connection_options* options,
                                                  time_span connect_timeout) {
    authenticated_stream made;
    auto connecting = with_timeout(via->connect(*to), connect_timeout);
    made.stream = co_await connecting;
    auto greeting = authenticate(*made.stream, side::connecting, *options);
    made.peer = co_await greeting;
    co_return made;
}

} // namespace detail

SKEIN_INLINE task<authenticated_stream> dial_patiently(network& via, address to,
                                                       connection_options options,
                                                       reconnect_policy policy,
                                                       random_source& random) {
    const auto begin = loop::current().now();
    for (int tries = 1;; ++tries) {
        std::optional<error> fault;
        try {
            auto once = detail::dial_once(&via, &to, &options, policy.connect_timeout);
            auto trying = policy.until == time_point::max()
                              ? std::move(once)
                              : with_deadline(std::move(once), policy.until);
            auto made = co_await trying;
            co_return made;
        } catch (const error& e) {
            fault = e;
        }
        if (!policy.worth_another(fault->code())) throw *fault;
        const auto now = loop::current().now();
        const auto pause = policy.delay(tries, random);
        const bool no_more = policy.max_tries != 0 && tries >= policy.max_tries;
        if (no_more || deadline_after(now, pause) >= policy.until) {
            error e(fault->code(),
                    fmt::format("connect {} failed after {} {} ({:.1f} s)", to_string(to), tries,
                                tries == 1 ? "try" : "tries", to_seconds(now - begin)));
            e.with_cause(fault->what());
            throw e;
        }
        auto sleeping = sleep_for(pause);
        co_await sleeping;
    }
}

SKEIN_INLINE task<authenticated_stream> dial_patiently(network& via, address to,
                                                       connection_options options,
                                                       reconnect_policy policy) {
    auto dialing =
        dial_patiently(via, std::move(to), std::move(options), policy, loop::current().random());
    auto made = co_await dialing;
    co_return made;
}

SKEIN_INLINE task<connection::handle> connect_patiently(network& via, address to,
                                                        connection_options options,
                                                        reconnect_policy policy,
                                                        random_source& random) {
    auto dialing = dial_patiently(via, std::move(to), options, policy, random);
    auto made = co_await dialing;
    co_return connection::over(std::move(made.stream), std::move(options), std::move(made.peer));
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

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signs that this host will be taken away, as clouds give them: a file that appears, an address that
// answers.
//
//     spmd::leave_notices signs{.url = "http://169.254.169.254/latest/meta-data/spot/instance-action"};
//     auto waiting = spmd::until_leave_notice(network, signs);
//     const std::string why = co_await waiting;           // "... says so"

#include <skein/core/config.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <string>

namespace skein::net {
class network;
}

namespace skein::spmd {

/// Each is looked at once a second.
struct leave_notices {
    std::string file{}; ///< that appears; empty: none
    /// "http://169.254.169.254/latest/meta-data/spot/instance-action": answers 200 from then on, as
    /// EC2 does. Empty: none.
    std::string url{};
    time_span every = std::chrono::seconds(1);

    [[nodiscard]] bool are_there() const noexcept { return !file.empty() || !url.empty(); }
};

///   errors  invalid_argument: the address is none
void check_leave_notices(const leave_notices& signs);

/// Suspends until the first of them is there, and says which; for ever, if none is named.
///   via     must outlive it
///   errors  invalid_argument: the address is none; cancelled
[[nodiscard]] task<std::string> until_leave_notice(net::network& via, leave_notices signs);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/leave_notices.ipp>
#endif

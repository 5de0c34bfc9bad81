// SPDX-License-Identifier: Apache-2.0
#pragma once
// How streams come to be: connect and listen, the same in the real and in the simulated world.

#include <skein/core/task.hpp>
#include <skein/net/address.hpp>
#include <skein/net/stream.hpp>

#include <memory>

namespace skein::net {

/// Implemented by real_network and by each host of sim::network.
class network {
public:
    network() = default;
    network(const network&) = delete;
    network& operator=(const network&) = delete;
    virtual ~network() = default;

    /// Connects once; the caller sets a deadline (with_timeout) and retries
    /// (net::reconnect_policy).
    ///   errors  refused, timeout, not_found (name), permission_denied, cancelled
    virtual task<std::unique_ptr<stream>> connect(address to) = 0;

    /// Binds and listens at once; port 0 picks a free one.
    ///   errors  already_exists (port or path in use), permission_denied, invalid_argument
    [[nodiscard]] virtual std::unique_ptr<listener> listen(address at) = 0;
};

} // namespace skein::net

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client of a service, over a link between two simulated hosts.

#include "net/support.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/net/requests.hpp>

#include <functional>
#include <memory>
#include <utility>

namespace net_test {

/// What is done with the client's end; when it is done both ends and the service are closed, and
/// what it threw goes on.
inline task<void> with_client(sim::network* network, std::shared_ptr<net::request_service> service,
                              std::function<task<void>(net::requests&)> work) {
    auto connecting = connect_pair(&network->host("a"), &network->host("b"),
                                   net::address::sim("b", 1), options("a"), options("b"));
    auto p = co_await connecting;
    auto client = net::requests::over(std::move(p.client));
    auto server = net::requests::over(std::move(p.server), service);
    auto working = error_of(work(*client));
    const auto fault = co_await working;
    auto closing = client->close();
    co_await closing;
    auto closing_too = server->close();
    co_await closing_too;
    auto ending = service->close();
    co_await ending;
    if (fault) throw *fault;
}

} // namespace net_test

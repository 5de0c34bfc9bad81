// SPDX-License-Identifier: Apache-2.0
#pragma once
// One question to a head, over a link of its own: what tools are made of.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/requests.hpp>
#include <skein/proc/process.hpp>

#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// A link to the head, for one question or several.
inline task<net::requests::handle> reach_head(net::network* via, tool_options how) {
    net::link_options once;
    once.resume = net::resume_mode::off;
    auto link = cluster_link(how.secret, how.name, how.host.empty() ? proc::host_name() : how.host,
                             how.pid == 0 ? ::getpid() : how.pid);
    auto dialing = as_result(with_timeout(
        net::link::connect(*via, how.head, std::move(link), std::move(once)), how.within));
    auto linked = co_await dialing;
    if (!linked && linked.error().code() == errc::cancelled) throw linked.error();
    if (!linked) {
        const auto& why = linked.error();
        throw no_cluster(how.head, why,
                         !why.hint().empty()
                             ? why.hint()
                             : "start one with skein head, or name another address");
    }
    co_return net::requests::over(std::move(*linked));
}

/// One question to a head.
template <class Reply, class M>
task<Reply> ask_head(net::network* via, tool_options how, M what) {
    auto reaching = reach_head(via, how);
    const auto way = co_await reaching;
    auto asking = as_result(with_timeout(way->template call<Reply>(std::move(what)), how.within));
    auto reply = co_await asking;
    auto closing = shield(way->close());
    co_await closing;
    if (!reply) throw reply.error();
    co_return std::move(*reply);
}

/// Runs one of the tasks on a loop of its own.
template <class Ask>
auto ask_now(Ask ask) {
    net::real_loop loop;
    net::real_network network(loop);
    return loop.run(ask(network));
}

} // namespace skein::cluster::detail

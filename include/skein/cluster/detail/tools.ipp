// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/tools.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
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

namespace skein::cluster {

namespace detail {

/// Why no session came about, with what to do.
[[nodiscard]] inline error no_cluster(const net::address& head, const error& why) {
    const auto hint =
        !why.hint().empty() ? why.hint() : "start one with skein head, or name another address";
    const auto what = is_no_answer(why.code()) ? "no cluster at" : "the head at";
    return error(why.code(), fmt::format("{} {}: {}", what, to_string(head), why.text()))
        .with_cause(why.cause())
        .with_hint(hint);
}

/// One question to a head, over a link of its own.
template <class Reply, class M>
task<Reply> ask_head(net::network* via, tool_options how, M what) {
    net::link_options once;
    once.resume = net::resume_mode::off;
    auto link = cluster_link(how.secret, how.name, how.host.empty() ? proc::host_name() : how.host,
                             how.pid == 0 ? ::getpid() : how.pid);
    auto dialing = as_result(with_timeout(
        net::link::connect(*via, how.head, std::move(link), std::move(once)), how.within));
    auto linked = co_await dialing;
    if (!linked && linked.error().code() == errc::cancelled) throw linked.error();
    if (!linked) throw no_cluster(how.head, linked.error());
    const net::requests::handle way = net::requests::over(std::move(*linked));
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

} // namespace detail

SKEIN_INLINE task<cluster_status> ask_for_status(net::network& via, tool_options how, bool past) {
    ask_status asked;
    asked.past = past;
    return detail::ask_head<cluster_status>(&via, std::move(how), asked);
}
SKEIN_INLINE task<drain_reply> ask_to_drain(net::network& via, tool_options how, std::string node,
                                            bool on) {
    return detail::ask_head<drain_reply>(&via, std::move(how), ask_drain{std::move(node), on});
}
SKEIN_INLINE task<drain_reply> ask_to_forget(net::network& via, tool_options how,
                                             std::string node) {
    ask_drain asked;
    asked.node = std::move(node);
    asked.forget = true;
    return detail::ask_head<drain_reply>(&via, std::move(how), std::move(asked));
}
SKEIN_INLINE task<stop_reply> ask_to_stop(net::network& via, tool_options how) {
    return detail::ask_head<stop_reply>(&via, std::move(how), ask_stop{});
}
SKEIN_INLINE task<stop_space_reply> ask_to_stop_space(net::network& via, tool_options how,
                                                      std::string space) {
    ask_stop_space asked;
    asked.space = std::move(space);
    return detail::ask_head<stop_space_reply>(&via, std::move(how), std::move(asked));
}

SKEIN_INLINE cluster_status get_status(const tool_options& how, bool past) {
    return detail::ask_now([&](net::network& via) { return ask_for_status(via, how, past); });
}
SKEIN_INLINE drain_reply drain_node(const tool_options& how, const std::string& node, bool on) {
    return detail::ask_now([&](net::network& via) { return ask_to_drain(via, how, node, on); });
}
SKEIN_INLINE drain_reply forget_node(const tool_options& how, const std::string& node) {
    return detail::ask_now([&](net::network& via) { return ask_to_forget(via, how, node); });
}
SKEIN_INLINE stop_reply stop_cluster(const tool_options& how) {
    return detail::ask_now([&](net::network& via) { return ask_to_stop(via, how); });
}
SKEIN_INLINE stop_space_reply stop_space(const tool_options& how, const std::string& space) {
    return detail::ask_now([&](net::network& via) { return ask_to_stop_space(via, how, space); });
}

} // namespace skein::cluster

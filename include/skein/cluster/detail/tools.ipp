// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/tools.hpp.

#include <skein/cluster/detail/ask_head.hpp>

#include <chrono>
#include <utility>

namespace skein::cluster {

SKEIN_INLINE task<cluster_status> ask_for_status(net::network& via, tool_options how, bool past) {
    ask_status asked;
    asked.past = past;
    return detail::ask_head<cluster_status>(&via, std::move(how), asked);
}
SKEIN_INLINE task<drain_reply> ask_to_drain(net::network& via, tool_options how, std::string node,
                                            bool on) {
    return detail::ask_head<drain_reply>(&via, std::move(how), ask_drain{std::move(node), on});
}
SKEIN_INLINE task<drain_reply> ask_to_drain(net::network& via, tool_options how, drain_wish what) {
    ask_drain asked;
    asked.node = std::move(what.node);
    asked.force = what.force;
    if (what.within)
        asked.within_ms =
            std::chrono::duration_cast<std::chrono::milliseconds>(duration(*what.within)).count();
    return detail::ask_head<drain_reply>(&via, std::move(how), std::move(asked));
}
SKEIN_INLINE task<drain_reply> ask_about_drain(net::network& via, tool_options how,
                                               std::string node) {
    ask_drain asked;
    asked.node = std::move(node);
    asked.look = true;
    return detail::ask_head<drain_reply>(&via, std::move(how), std::move(asked));
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
SKEIN_INLINE drain_reply drain_node(const tool_options& how, const drain_wish& what) {
    return detail::ask_now([&](net::network& via) { return ask_to_drain(via, how, what); });
}
SKEIN_INLINE drain_reply look_at_drain(const tool_options& how, const std::string& node) {
    return detail::ask_now([&](net::network& via) { return ask_about_drain(via, how, node); });
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

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an agent knows of drains of its node: what the head has said, for a head that is started
// again, and the sign that its host is about to be taken away.
//
//     agent_drain drain;
//     drain.hear(node_drains{.on = true, .within_ms = 30'000}, loop.now());
//     drain.add_to(hello, loop.now());                // with what is left of it

#include <skein/core/config.hpp>
#include <skein/cluster/detail/node_messages.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein::cluster::detail {

class head_link;

/// Belongs to one loop.
class agent_drain {
public:
    /// The agent only remembers it; a drain that is taken back holds against a notice, too.
    void hear(const node_drains& m, time_point now);
    /// The host is about to be taken away.
    void leave(const node_leaves& m, time_point now);
    void add_to(node_hello& h, time_point now) const;

private:
    node_drains said_{.on = false};
    time_point empty_by_ = time_point::max();
    std::optional<node_leaves> notice_;
    time_point gone_by_ = time_point::max();
};

/// Waits for a sign that the host is about to be taken away, and tells the head; without a head the
/// next one hears it with the hello.
///   until_notice  see agent_options; empty: there is none
///   all           outlive it
task<void> watch_notices(agent_drain* drain, head_link* head,
                         unique_function<task<std::string>()>* until_notice, time_span within);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/agent_drain.ipp>
#endif

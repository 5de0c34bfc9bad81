// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/training_scale.hpp.

#include <skein/cluster/detail/ask_head.hpp>
#include <skein/cluster/detail/training_messages.hpp>

namespace skein::cluster {

SKEIN_INLINE std::string scale_training_of(const tool_options& how, const std::string& job,
                                           int workers) {
    ask_scale what;
    what.job = job;
    what.workers = workers;
    return detail::ask_now(
               [&](net::network& via) { return detail::ask_head<scale_reply>(&via, how, what); })
        .said;
}

} // namespace skein::cluster

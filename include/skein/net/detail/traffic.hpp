// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the connections of this process have sent and received, for who reads its numbers.

#include <skein/core/metric_registry.hpp>

namespace skein::net::detail {

/// Found once: then each count is one relaxed addition.
struct traffic_numbers {
    metric_counter& bytes_out;
    metric_counter& bytes_in;
    metric_counter& messages_out;
    metric_counter& messages_in;
};

[[nodiscard]] inline const traffic_numbers& traffic() {
    static auto& all = metric_registry::process();
    static const traffic_numbers here{
        all.counter("skein_net_sent_bytes_total", "Bytes sent to peers."),
        all.counter("skein_net_received_bytes_total", "Bytes received from peers."),
        all.counter("skein_net_sent_messages_total", "Frames sent to peers."),
        all.counter("skein_net_received_messages_total", "Frames received from peers.")};
    return here;
}

} // namespace skein::net::detail
